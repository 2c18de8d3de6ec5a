// Package bench measures how fast a backlog is delivered, beside the floor: the barest pipe from a COPY
// into the same broker's own client. Contenders take turns in one run on the same servers and the same
// rows, because machines are noisy and only ratios within a run mean something. Every message of every
// run is checked.
package bench
