// Package route decides which messages a destination gets, and under which topic and headers: a [Filter] selects
// messages, [Rules] change them. Everything is pure: the answer for a message never changes, and a relay relies on that
// when it reads a message again.
//
// Patterns are texts in which each * stands for any text, dots included; one without * is matched exactly. Matching is
// case-sensitive.
package route
