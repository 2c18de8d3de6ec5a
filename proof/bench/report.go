package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// ReadResults reads what a benchmark has written as JSON lines. It returns the runs, from which summaries
// follow.
func ReadResults(r io.Reader) ([]Result, error) {
	var runs []Result
	dec := json.NewDecoder(r)
	for n := 1; ; n++ {
		var one Result
		err := dec.Decode(&one)
		if errors.Is(err, io.EOF) {
			return runs, nil
		}
		if err != nil {
			return nil, fmt.Errorf("result %d: %w", n, err)
		}
		if !slices.Contains([]string{"drain", "latency", "write", "strategies"}, one.Bench) {
			return nil, fmt.Errorf("result %d is of no benchmark that this program knows: %q", n, one.Bench)
		}
		if one.Round > 0 {
			runs = append(runs, one)
		}
	}
}

// markers of the part of a page that Report writes.
const (
	resultsBegin = "<!-- results -->"
	resultsEnd   = "<!-- end of results -->"
)

// Report makes a section of a page from files of JSON lines, one for each run of a benchmark, and a
// picture for each, named like it, in the folder plots. It replaces what stands between the markers of the
// page, or if page is "" writes the section to w.
func Report(w io.Writer, files []string, plots, page string) error {
	var section strings.Builder
	section.WriteString("\n")
	for _, file := range files {
		if err := reportFile(&section, file, plots, page); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	if page == "" {
		_, err := io.WriteString(w, section.String())
		return err
	}
	return replace(page, section.String())
}

func reportFile(section *strings.Builder, file, plots, page string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	runs, err := ReadResults(bytes.NewReader(text))
	if err != nil {
		return err
	}
	if len(runs) == 0 {
		return errors.New("it has no results")
	}
	all := Summaries(runs)
	c := chartOf(all)
	name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)) + ".svg"
	path := filepath.Join(plots, name)
	if err := os.WriteFile(path, []byte(c.svg()), 0o644); err != nil {
		return err
	}
	link, err := filepath.Rel(filepath.Dir(page), path)
	if page == "" || err != nil {
		link = path
	}
	first := all[0]
	fmt.Fprintf(section, "### %s\n%s\n\n![%s](%s)\n\n", c.title, provenance(first, runs), c.title, filepath.ToSlash(link))
	tableOf(all, "round").markdown(section) // it is "median" in each row
	if ratios := Ratios(runs); len(ratios) > 0 {
		section.WriteString("\nRatios to the originals:\n\n")
		ratioTable(ratios).markdown(section)
	}
	section.WriteString("\n")
	return nil
}

// provenance says when, where and on what a run was.
func provenance(r Result, runs []Result) string {
	rounds := 0
	for _, one := range runs {
		rounds = max(rounds, one.Round)
	}
	var versions, settings []string
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		versions = append(versions, name+" "+r.Versions[name])
	}
	for _, name := range slices.Sorted(maps.Keys(r.Settings)) {
		settings = append(settings, "`"+name+"="+r.Settings[name]+"`")
	}
	plural := "rounds"
	if rounds == 1 {
		plural = "round"
	}
	text := fmt.Sprintf("%s; %s; %s; %d %s. Settings: %s.", r.Date,
		r.Machine, strings.Join(versions, ", "), rounds, plural, strings.Join(settings, ", "))
	return strings.TrimSpace(lines.ReplaceAllString(text, "$1\n"))
}

// lines are as wide as the other lines of the pages.
var lines = regexp.MustCompile(`(.{1,120})( |$)`)

// replace puts text between the markers of a page.
func replace(page, text string) error {
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(old), resultsBegin)
	_, after, closed := strings.Cut(rest, resultsEnd)
	if !found || !closed {
		return fmt.Errorf("%s: the lines %q and %q are missing, between which results would stand", page, resultsBegin, resultsEnd)
	}
	return os.WriteFile(page, []byte(before+resultsBegin+"\n"+text+resultsEnd+after), 0o644)
}
