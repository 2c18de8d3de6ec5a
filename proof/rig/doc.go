// Package rig is what the tests that break real processes have in common: the binary's relays as child
// processes, a workload that knows afterwards what it committed, and brokers to read back.
package rig
