// Package route decides what a destination gets, and under which topic and headers: a [Filter] says which
// messages it wants, [Rules] what becomes of them. Everything is pure: the same answer for the same message
// forever, which a relay relies on when it reads a message again.
//
// Patterns are texts in which each * stands for any text, dots included; one without * is matched exactly.
// Letters count as they are.
package route
