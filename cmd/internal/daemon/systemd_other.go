//go:build !linux

package daemon

import "context"

// supervised does nothing where there is no systemd.
func supervised(context.Context, func(string) string) {}

// Reloading does nothing where there is no systemd.
func Reloading(func(string) string) (done func(error)) { return func(error) {} }
