package console

import (
	"bytes"
	"fmt"
	"net/url"
	"strings"
)

// The pages are trees of elements, and this file alone writes markup. Every text is escaped where it is written, so no
// caller can forget it. Package html/template would bring reflection that keeps the linker from leaving out what the
// program never calls.

// element is a piece of a page.
type element struct {
	tag   string
	attrs []attribute
	parts []any
	live  bool // a region: a new version replaces it while the page is open
}

// attribute is a name of ours with any value.
type attribute struct{ name, value string }

// address is where a link leads: a page of the console, named by us, with a query. So no text of others becomes a
// scheme.
type address string

// list is some parts in a row.
type list []any

// el makes an element. Its name may have classes, as in "td.number". Parts are elements, attributes, addresses, lists,
// texts, which are escaped, and nil.
func el(name string, parts ...any) *element {
	tag, classes, _ := strings.Cut(name, ".")
	e := &element{tag: tag}
	if classes != "" {
		e.attrs = append(e.attrs, attribute{"class", strings.ReplaceAll(classes, ".", " ")})
	}
	for _, p := range parts {
		switch p := p.(type) {
		case attribute:
			e.attrs = append(e.attrs, p)
		case address:
			name := "href"
			switch tag {
			case "form":
				name = "action"
			case "button":
				name = "formaction"
			case "script", "img":
				name = "src"
			}
			e.attrs = append(e.attrs, attribute{name, string(p)})
		default:
			e.parts = append(e.parts, p)
		}
	}
	return e
}

// attr makes an attribute that is no address and runs nothing.
func attr(name, value string) attribute {
	if name == "href" || name == "src" || name == "action" || name == "formaction" || name == "style" || strings.HasPrefix(name, "on") {
		panic("console: the attribute " + name + " is not for texts") // every page in a test would show it
	}
	return attribute{name, value}
}

// to makes the address of a page with pairs of a query. Empty values are left out.
func to(path string, pairs ...string) address {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Add(pairs[i], pairs[i+1])
		}
	}
	if len(q) == 0 {
		return address(path)
	}
	return address(path + "?" + q.Encode())
}

// region makes a section that is replaced when it changes.
func region(id string, parts ...any) *element {
	e := el("section", append([]any{attr("id", id), attr("data-live", "")}, parts...)...)
	e.live = true
	return e
}

// here is the address of a page of this console from any of its pages.
func here(path string, pairs ...string) address {
	if path == "" {
		path = "./"
	}
	return to(path, pairs...)
}

// when is parts under a condition.
func when(is bool, parts ...any) any {
	if is {
		return list(parts)
	}
	return nil
}

// document writes elements, and remembers the regions.
type document struct {
	bytes.Buffer
	regions []regionText
}

type regionText struct{ id, text string }

var escaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;", "\x00", "\uFFFD")

// empty elements have no end.
var empty = map[string]bool{"meta": true, "link": true, "input": true, "br": true, "hr": true, "img": true}

func (d *document) add(part any) {
	switch p := part.(type) {
	case nil:
	case string:
		_, _ = escaper.WriteString(d, p) // it writes into memory
	case list:
		for _, one := range p {
			d.add(one)
		}
	case []*element:
		for _, one := range p {
			d.add(one)
		}
	case *element:
		if p != nil {
			d.element(p)
		}
	default:
		panic(fmt.Sprintf("console: a page can't have a %T", part)) // every page in a test would show it
	}
}

func (d *document) element(e *element) {
	from := d.Len()
	d.WriteString("<" + e.tag)
	for _, a := range e.attrs {
		d.WriteString(" " + a.name + `="`)
		_, _ = escaper.WriteString(d, a.value)
		d.WriteByte('"')
	}
	d.WriteByte('>')
	if empty[e.tag] {
		return
	}
	for _, p := range e.parts {
		d.add(p)
	}
	d.WriteString("</" + e.tag + ">")
	if e.live {
		for _, a := range e.attrs {
			if a.name == "id" {
				d.regions = append(d.regions, regionText{a.value, string(d.Bytes()[from:])})
			}
		}
	}
}
