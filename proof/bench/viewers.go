package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgoutbox/outbox/proof/rig"
)

// viewers look at the console's overview, which is sent to each whenever it changes.
type viewers struct {
	cancel context.CancelFunc
	ended  sync.WaitGroup
	want   int
	seen   atomic.Int64 // those that were sent something
}

// view has n viewers connect to a relay as soon as it listens.
func view(ctx context.Context, address string, n int) *viewers {
	v := &viewers{want: n}
	ctx, v.cancel = context.WithCancel(ctx)
	client := &http.Client{Transport: &http.Transport{}}
	for range n {
		v.ended.Go(func() {
			for !v.follow(ctx, client, "http://"+address+"/console/live?of=") {
				if rig.Pause(ctx, 5*time.Millisecond) != nil {
					return
				}
			}
		})
	}
	return v
}

// follow reads a stream to its end, and reports whether there was anything.
func (v *viewers) follow(ctx context.Context, client *http.Client, address string) (any bool) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return true
	}
	answer, err := client.Do(r)
	if err != nil {
		return false // it doesn't listen yet
	}
	defer answer.Body.Close()
	for lines := bufio.NewReader(answer.Body); ; {
		line, err := lines.ReadString('\n')
		if strings.HasPrefix(line, "data: ") && !any {
			any = true
			v.seen.Add(1)
		}
		if err != nil {
			return any
		}
	}
}

// stop ends them. It is an error if there were fewer than wanted.
func (v *viewers) stop() error {
	if v == nil {
		return nil
	}
	v.cancel()
	v.ended.Wait()
	if seen := v.seen.Load(); int(seen) < v.want {
		return fmt.Errorf("%d of %d viewers were sent a page: the drain was too short, or the relay refused them", seen, v.want)
	}
	return nil
}
