package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// launch starts the contender's processes, and returns those that it has started.
func (s *strategyRun) launch() (team, error) {
	var t team
	for i := range s.workers {
		p, err := s.launchOne(i)
		if err != nil {
			return t, err
		}
		t = append(t, p)
	}
	return t, nil
}

func (s *strategyRun) launchOne(i int) (*process, error) {
	o := order{Database: s.url, Broker: "kafka", Address: s.to.address(), Topic: s.to.names[0], Batch: s.Batch, Group: i}
	switch {
	case s.original != "":
		o.Part, o.Original, o.Topics = partOriginal, s.original, [2]string{s.to.names[0], s.to.names[len(s.to.names)-1]}
		return startPart(o)
	case s.peer != "":
		return startProcess(s.peer, s.Peers, "-library", s.peer, "-database", s.url, "-broker", s.to.address(), "-batch", strconv.Itoa(peerBatch))
	case s.strategy.name == Debezium:
		return s.startDebezium()
	case s.strategy.name == Floor:
		o.Part = partCopy
		return startPart(o)
	}
	var more strings.Builder
	if s.source != "" {
		fmt.Fprintf(&more, "    source: {preset: %s}\n", s.source)
	}
	if s.log {
		fmt.Fprintf(&more, "    replication: {slot: %s}\n", s.slot(Replication))
	}
	if s.groups && s.workers > 1 {
		fmt.Fprintf(&more, "    shard_groups: %d\n", s.workers)
	}
	return startRelayNamed(s.bed, fmt.Sprintf("bench-%d", i), 0, more.String())
}

// begun waits until one of the contender's processes works: of some contenders, others stand by.
func (s *strategyRun) begun(ctx context.Context, conn *pgx.Conn) (time.Time, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("nothing has begun for a minute"))
	defer cancel()
	for {
		if s.strategy.name == Debezium {
			if streams, err := s.debeziumStreams(ctx, conn); err != nil || streams {
				return time.Now(), err
			}
		}
		for _, p := range s.team {
			select {
			case at := <-p.ready:
				return at, nil
			default:
			}
		}
		if err := s.team.ended(); err != nil {
			return time.Time{}, err
		}
		if pause(ctx, time.Millisecond) != nil {
			return time.Time{}, s.team[0].failure(context.Cause(ctx))
		}
	}
}

// drained waits until everything has been delivered, and returns when the last message came.
func (s *strategyRun) drained(ctx context.Context, conn *pgx.Conn, began time.Time, messages int) (time.Duration, error) {
	last, since := 0, time.Now()
	end := began
	for {
		n, err := s.to.count(ctx)
		if err != nil {
			return 0, err
		}
		now := time.Now()
		if n > last {
			last, since, end = n, now, now
		}
		if s.layout.left == "" && n >= messages {
			return end.Sub(began), nil
		}
		if s.layout.left != "" && now.Sub(since) > 200*time.Millisecond {
			var left bool
			if err := conn.QueryRow(ctx, s.layout.left).Scan(&left); err != nil {
				return 0, err
			}
			if !left {
				return end.Sub(began), nil
			}
			if err := pause(ctx, 200*time.Millisecond); err != nil {
				return 0, err
			}
		}
		if err := s.team.ended(); err != nil {
			return 0, fmt.Errorf("after %d messages: %w", n, err)
		}
		if now.Sub(since) > stalled {
			return 0, s.team[0].failure(fmt.Errorf("nothing has come for %v after %d of %d messages", stalled, n, messages))
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return 0, err
		}
	}
}
