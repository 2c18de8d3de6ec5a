//go:build !linux

package wal

import "net"

// lowWater is of no use here: the reader wakes up for each message.
type lowWater struct{}

func newLowWater(net.Conn) lowWater { return lowWater{} }

func (*lowWater) set(int) bool { return false }
