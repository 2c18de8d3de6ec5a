package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// result is a line of a benchmark's output: what it measured, by unit.
type result struct {
	broker string
	values map[string]float64
}

// parse returns the results in the output of go test.
func parse(output string) (results []result) {
	for line := range strings.Lines(output) {
		words := strings.Fields(line)
		if len(words) < 4 || !strings.HasPrefix(words[0], "Benchmark") {
			continue
		}
		_, name, ok := strings.Cut(words[0], "/")
		if !ok {
			continue
		}
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			name = name[:i] // the number of processors
		}
		r := result{broker: strings.ReplaceAll(name, "_", " "), values: map[string]float64{}}
		for i := 2; i+1 < len(words); i += 2 {
			if value, err := strconv.ParseFloat(words[i], 64); err == nil {
				r.values[words[i+1]] = value
			}
		}
		results = append(results, r)
	}
	return results
}

// write prints a table in Markdown.
func write(w io.Writer, results []result) error {
	var text strings.Builder
	text.WriteString("| broker | adapter msg/s | loop msg/s | adapter ÷ loop | by processor | the same, 1 ms away | " +
		"adapter 1 ms away ÷ nearby | loop 1 ms away ÷ nearby |\n|---|---|---|---|---|---|---|---|\n")
	for _, r := range results {
		fmt.Fprintf(&text, "| %s | %.0f | %.0f | %s | %s | %s | %s | %s |\n", r.broker, r.values["adapter-msg/s"], r.values["loop-msg/s"],
			r.ratio("ratio"), r.ratio("cpu-ratio"), r.ratio("far-ratio"), r.ratio("kept"), r.ratio("loop-kept"))
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// ratio is a median with its spread.
func (r result) ratio(name string) string {
	return fmt.Sprintf("%.2f (%.2f–%.2f)", r.values[name], r.values[name+"-low"], r.values[name+"-high"])
}
