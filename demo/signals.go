package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// watchSignals ends the demo on SIGINT, SIGTERM and SIGHUP, until stop. Without a given length, the first SIGINT only
// asks for the verdict. SIGPIPE is caught, so that a reader that goes away makes writing fail instead of killing the
// process.
func (d *demo) watchSignals(ctx context.Context) (stop func()) {
	incoming := make(chan os.Signal, 4)
	signal.Notify(incoming, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case got := <-incoming:
				switch {
				case got == syscall.SIGPIPE:
				case got == os.Interrupt && d.cfg.For == 0 && !closed(d.wanted):
					d.want()
				default:
					d.fail(ErrInterrupted)
				}
			}
		}
	})
	return func() {
		signal.Stop(incoming)
		cancel()
		watching.Wait()
	}
}
