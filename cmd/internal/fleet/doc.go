// Package fleet decides who runs what in a fleet: equal processes, the members, that share the parts of many databases.
// It has no clock, no goroutine and no input or output.
//
// [Place] says who runs each part, from the list of parts and the members alone.
package fleet
