// Package fleet decides who runs what in a fleet: equal processes, the members, that share the parts of many databases.
// It has no clock, no goroutine and no input or output.
//
// [Place] says who runs each part, from the list of parts and the members alone. Without a home, where each process has
// its ordinal and the count from its environment, that is all: it runs the first of Place(parts,
// Numbered(count)).Shares (ordinal), and stands by for the second.
//
// With a home, the database in which members know each other, a [Core] decides for one process. Its runtime reads the
// home's records at each change, when somebody's session has ended, and after [Step.Again]; gives them to [Core.Next];
// and does what the [Step] says. Each write to the home is one statement with a condition and may find it no longer
// true: then nothing is written, and the next look shows why. Nothing here guards the order of messages or their
// delivery: leases and locks in the databases do. If two members believe that a part is theirs, one waits for the
// other.
package fleet
