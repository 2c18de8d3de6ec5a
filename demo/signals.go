package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// watchSignals returns a context that ends with SIGINT, SIGTERM and SIGHUP. Where patient, the first SIGINT only closes
// wanted, which asks for the verdict. SIGPIPE is taken so that a reader who has gone away is an error of writing and not
// the end of the process.
func watchSignals(ctx context.Context, patient bool) (_ context.Context, wanted <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	incoming := make(chan os.Signal, 4)
	signal.Notify(incoming, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	verdict := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case got := <-incoming:
				switch {
				case got == syscall.SIGPIPE:
				case got == os.Interrupt && patient:
					patient = false
					close(verdict)
				default:
					cancel()
				}
			}
		}
	})
	return ctx, verdict, func() {
		signal.Stop(incoming)
		cancel()
		watching.Wait()
	}
}
