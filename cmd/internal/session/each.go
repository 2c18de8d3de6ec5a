package session

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5"
)

// All are the addresses of all databases that the flags, the environment or the configuration name.
func (s *Session) All(ctx context.Context) ([]Address, error) { return s.addresses(ctx) }

// Named reports whether a flag names one database.
func (s *Session) Named() bool { return s.databaseName != "" || s.DatabaseURL != "" }

// Open opens a connection to one of them; the caller closes it. Its errors say what to do.
func (s *Session) Open(ctx context.Context, at Address) (*pgx.Conn, error) { return s.open(ctx, at) }

// Each calls do with the numbers 0 to n-1, at most so many at once, and returns when all calls have returned. It begins
// none once ctx has ended.
func Each(ctx context.Context, n, parallel int, do func(i int)) {
	next := make(chan int)
	var working sync.WaitGroup
	for range min(n, parallel) {
		working.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := 0; i < n && ctx.Err() == nil; i++ {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	working.Wait()
}
