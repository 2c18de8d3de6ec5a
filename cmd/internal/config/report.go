package config

import (
	"fmt"
	"slices"
	"strings"
)

// report collects what is wrong with a configuration, beside the places that its settings come from.
type report struct {
	origins  map[string]Origin
	rejected map[string]bool // paths whose value is at fault already
	faults   Faults
	warnings []string
}

func newReport() *report {
	return &report{origins: make(map[string]Origin), rejected: make(map[string]bool)}
}

// fault adds a fault at a place.
func (r *report) fault(o Origin, path, format string, args ...any) {
	if path != "" {
		r.reject(path)
	}
	message := fmt.Sprintf(format, args...)
	if slices.ContainsFunc(r.faults, func(f Fault) bool {
		return o.Line > 0 && f.Message == message && f.Origin.String() == o.String() && f.Path != path && last(f.Path) == last(path)
	}) {
		return // one line, which several databases have from the top level
	}
	r.faults = append(r.faults, Fault{Origin: o, Path: path, Message: message})
}

func last(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }

func (r *report) warn(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

// check adds a fault at the setting unless the condition holds, or the setting
// or what it is part of is at fault already.
func (r *report) check(ok bool, path, format string, args ...any) {
	if !ok && !r.faulty(path) {
		r.fault(r.originOf(path), path, format, args...)
	}
}

// given reports whether a layer gives the setting.
func (r *report) given(path string) bool {
	_, given := r.origins[path]
	return given
}

// reject marks a setting as at fault, so that nothing else is said of it.
func (r *report) reject(path string) { r.rejected[path] = true }

// faulty reports whether a setting, or what it is part of, is at fault.
func (r *report) faulty(path string) bool {
	for p := path; p != ""; p = parent(p) {
		if r.rejected[p] {
			return true
		}
	}
	return false
}

// advise warns about the setting unless the condition holds.
func (r *report) advise(ok bool, path, format string, args ...any) {
	if !ok {
		r.warn("%s", Fault{Origin: r.originOf(path), Path: path, Message: fmt.Sprintf(format, args...)})
	}
}

// originOf returns the place of a setting, or of the closest section around it
// that has one.
func (r *report) originOf(path string) Origin {
	for p := path; p != ""; p = parent(p) {
		if o, found := r.origins[p]; found {
			return o
		}
	}
	return Origin{}
}

func parent(path string) string {
	return path[:max(0, strings.LastIndexAny(path, ".["))]
}
