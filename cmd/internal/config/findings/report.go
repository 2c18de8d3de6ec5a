// Package findings has what checks find out about a configuration: the origin of each setting, and faults.
package findings

import (
	"fmt"
	"slices"
	"strings"
)

// Report collects the faults and warnings of a configuration, and where its settings come from.
type Report struct {
	Origins  map[string]Origin // of what a layer gives, by path
	Rejected map[string]bool   // paths whose value is at fault already
	Faults   Faults
	Warnings []string
}

// NewReport returns an empty report.
func NewReport() *Report {
	return &Report{Origins: make(map[string]Origin), Rejected: make(map[string]bool)}
}

// Fault adds a fault at a place.
func (r *Report) Fault(o Origin, path, format string, args ...any) {
	if path != "" {
		r.Reject(path)
	}
	message := fmt.Sprintf(format, args...)
	if slices.ContainsFunc(r.Faults, func(f Fault) bool {
		return o.Line > 0 && f.Message == message && f.Origin.String() == o.String() && f.Path != path && last(f.Path) == last(path)
	}) {
		return // one line, which several databases have from the top level
	}
	r.Faults = append(r.Faults, Fault{Origin: o, Path: path, Message: message})
}

func last(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }

// Warn adds a warning.
func (r *Report) Warn(format string, args ...any) {
	r.Warnings = append(r.Warnings, fmt.Sprintf(format, args...))
}

// Check adds a fault at the setting unless the condition holds, or the setting
// or what it is part of is at fault already.
func (r *Report) Check(ok bool, path, format string, args ...any) {
	if !ok && !r.Faulty(path) {
		r.Fault(r.OriginOf(path), path, format, args...)
	}
}

// Given reports whether a layer gives the setting.
func (r *Report) Given(path string) bool {
	_, given := r.Origins[path]
	return given
}

// Reject marks a setting as at fault, so that nothing else is said of it.
func (r *Report) Reject(path string) { r.Rejected[path] = true }

// Faulty reports whether a setting, or what it is part of, is at fault.
func (r *Report) Faulty(path string) bool {
	for p := path; p != ""; p = parent(p) {
		if r.Rejected[p] {
			return true
		}
	}
	return false
}

// Advise warns about the setting unless the condition holds.
func (r *Report) Advise(ok bool, path, format string, args ...any) {
	if !ok {
		r.Warn("%s", Fault{Origin: r.OriginOf(path), Path: path, Message: fmt.Sprintf(format, args...)})
	}
}

// Adviser is a section with something to say of its settings, at a path, that their tags don't say.
type Adviser interface {
	Advise(r *Report, path string)
}

// OriginOf returns the place of a setting, or of the closest section around it
// that has one.
func (r *Report) OriginOf(path string) Origin {
	for p := path; p != ""; p = parent(p) {
		if o, found := r.Origins[p]; found {
			return o
		}
	}
	return Origin{}
}

func parent(path string) string {
	return path[:max(0, strings.LastIndexAny(path, ".["))]
}
