//go:build !linux

package wal

import "net"

// lowWater has no effect on this system: the reader wakes up for each message.
type lowWater struct{}

func newLowWater(net.Conn) lowWater { return lowWater{} }

func (*lowWater) set(int) bool { return false }
