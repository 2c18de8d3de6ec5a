// Package pages reads the documentation, for the tests that run its commands and resolve its links.
//
// A fenced block's info string is its language and options: title="outbox.yaml" makes a file of the block, and
// unchecked="why" says why no test runs it.
package pages

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// A Page is one Markdown file.
type Page struct {
	Path    string // from the root, with slashes
	Blocks  []Block
	Spans   []Span // code within text
	Links   []Link
	Anchors map[string]bool // what may follow a # in links to it
}

// A Block is code that stands by itself, fenced or indented.
type Block struct {
	Position string // file:line of its first line
	Lang     string // empty for an indented block
	Options  map[string]string
	Text     string
}

// A Span is code in a sentence.
type Span struct{ Position, Text string }

// A Link leads to a page, a file, a folder or an address.
type Link struct{ Position, Target string }

var (
	fence   = regexp.MustCompile("^( *)```(\\w*)(.*)$")
	option  = regexp.MustCompile(`([\w-]+)="([^"]*)"`)
	heading = regexp.MustCompile(`^#{1,6} +(.*)$`)
	span    = regexp.MustCompile("(?s)`([^`]+)`")
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)|\b(?:href|src|srcset|id|name)="([^"]+)"`)
	list    = regexp.MustCompile(`^ *([-*+]|\d+\.) `)
	unword  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// Read returns all pages below root, in the order of their paths.
func Read(root string) (all []Page, err error) {
	err = filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && file != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(file, ".md") {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		from, err := filepath.Rel(root, file)
		if err == nil {
			all = append(all, parse(filepath.ToSlash(from), string(text)))
		}
		return err
	})
	return all, err
}

func parse(file, text string) Page {
	p := Page{Path: file, Anchors: make(map[string]bool)}
	var prose []string // the lines of the text, code left out
	var block *Block
	indent, listed, blank := "", false, true
	for i, line := range strings.Split(text, "\n") {
		place := fmt.Sprintf("%s:%d", file, i+1)
		fenced := fence.FindStringSubmatch(line)
		said := ""
		switch {
		case block != nil && block.Lang != "" && (fenced == nil || fenced[2] != ""):
			block.Text += strings.TrimPrefix(line, indent) + "\n"
		case block != nil && block.Lang != "":
			p.Blocks, block = append(p.Blocks, *block), nil
		case fenced != nil:
			block, indent = &Block{Position: place, Lang: fenced[2], Options: make(map[string]string)}, fenced[1]
			if block.Lang == "" {
				block.Lang = "text"
			}
			for _, o := range option.FindAllStringSubmatch(fenced[3], -1) {
				block.Options[o[1]] = o[2]
			}
		case strings.HasPrefix(line, "    ") && !listed && (blank || block != nil):
			if block == nil {
				block = &Block{Position: place}
			}
			block.Text += line[4:] + "\n"
		case block != nil && strings.TrimSpace(line) == "":
			block.Text += "\n"
		default:
			if block != nil {
				p.Blocks, block = append(p.Blocks, *block), nil
			}
			said = line
			if title := heading.FindStringSubmatch(line); title != nil {
				p.Anchors[anchor(title[1])] = true
				listed = false
			}
			if list.MatchString(line) {
				listed = true
			} else if line != "" && line[0] != ' ' {
				listed = false
			}
		}
		blank = strings.TrimSpace(line) == ""
		prose = append(prose, said)
	}
	if block != nil {
		p.Blocks = append(p.Blocks, *block)
	}
	p.references(strings.Join(prose, "\n"))
	return p
}

// references notes the links and the code in the text, and leaves links out that are code.
func (p *Page) references(text string) {
	at := func(offset int) string { return fmt.Sprintf("%s:%d", p.Path, 1+strings.Count(text[:offset], "\n")) }
	for _, m := range span.FindAllStringSubmatchIndex(text, -1) {
		p.Spans = append(p.Spans, Span{at(m[0]), strings.Join(strings.Fields(text[m[2]:m[3]]), " ")})
	}
	bare := span.ReplaceAllStringFunc(text, func(code string) string { return strings.Repeat("\n", strings.Count(code, "\n")) })
	text = bare
	for _, m := range link.FindAllStringSubmatchIndex(bare, -1) {
		switch {
		case m[2] >= 0:
			p.Links = append(p.Links, Link{at(m[0]), bare[m[2]:m[3]]})
		case strings.HasPrefix(bare[m[0]:], "id") || strings.HasPrefix(bare[m[0]:], "name"):
			p.Anchors[bare[m[4]:m[5]]] = true
		default:
			p.Links = append(p.Links, Link{at(m[0]), bare[m[4]:m[5]]})
		}
	}
}

// anchor returns the anchor that GitHub gives a heading.
func anchor(title string) string {
	title = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(title, "$1")
	return strings.ReplaceAll(unword.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), ""), " ", "-")
}

// Faults names each link that leads nowhere, below root.
func Faults(root string, all []Page) (faults []string) {
	pages := make(map[string]Page)
	for _, p := range all {
		pages[p.Path] = p
	}
	for _, p := range all {
		for _, l := range p.Links {
			if strings.Contains(l.Target, "://") || strings.HasPrefix(l.Target, "mailto:") {
				continue // it takes a network to resolve
			}
			target, fragment, _ := strings.Cut(l.Target, "#")
			file := p.Path
			if target != "" {
				file = path.Join(path.Dir(p.Path), target)
			}
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(file))); err != nil {
				faults = append(faults, fmt.Sprintf("%s: there is no %s", l.Position, file))
			} else if fragment != "" && !pages[file].Anchors[fragment] {
				faults = append(faults, fmt.Sprintf("%s: %s has no heading #%s", l.Position, file, fragment))
			}
		}
	}
	return faults
}
