package rig

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pgoutbox/outbox/internal/check"
)

// Losses says what the servers themselves have lost, so that it is no fault of the relay's.
type Losses struct {
	// Promoted is when a standby took over that lacked the latest commits: what was committed until then
	// and is not in the database was erased. Zero: the database has everything.
	Promoted time.Time

	// Emptied is when the topic was there again after it had been deleted, and Before has what was read
	// from it until shortly before; Kept has for each key the number with which the new topic begins (see
	// [Begins]), where keys have an order. What is in neither, stands before the first number kept and was committed by
	// then, may have gone with the topic. Zero: the topic has everything.
	Emptied time.Time
	Before  map[check.ID]bool
	Kept    map[uint32]uint64
}

// Truth is what the oracle found.
type Truth struct {
	Committed int // in the database
	Erased    int // committed, and lost by the promotion
	Gone      int // committed, and lost with the topic
	Big       int // messages in the database that no broker takes
}

// Tell ends the writers and tells a checker what became of every message, going by the ledger in the
// database: a transaction that is in it was committed, and any other wasn't, whatever its writer knows.
// It returns an error when the database contradicts a writer, which is a fault of the test's.
func (l *Load) Tell(ctx context.Context, checker *check.Checker, losses Losses) (Truth, error) {
	l.Stop()
	var truth Truth
	ledger, err := l.ledger(ctx)
	if err != nil {
		return truth, err
	}
	for key := range l.accounts {
		a := &l.accounts[key]
		for i, m := range a.attempts {
			seq := uint64(i + 1)
			name := check.ID{Key: uint32(key), Seq: seq}
			inTime := !losses.Promoted.IsZero() && !m.at.After(losses.Promoted)
			switch _, has := ledger[name]; {
			case has && m.outcome == rolledBack:
				return truth, fmt.Errorf("message %v was rolled back and is in the database", name)
			case has && !m.big && losses.took(name, m.at):
				truth.Committed++
				truth.Gone++
				checker.Unknown(name.Key, seq)
				checker.Destination("default").Delivered(name.Key, seq) // so that another delivery is a repeat
			case has:
				truth.Committed++
				if m.big {
					truth.Big++
				}
				checker.Committed(name.Key, seq)
			case m.outcome == rolledBack:
				checker.RolledBack(name.Key, seq)
			case inTime:
				truth.Erased++
				checker.Unknown(name.Key, seq)
			case m.outcome == committed:
				return truth, fmt.Errorf("message %v was committed and is not in the database", name)
			default:
				checker.RolledBack(name.Key, seq)
			}
		}
	}
	return truth, nil
}

// Begins returns with which number of a key a topic begins, given all its numbers of the key as they stand there. A
// relay that goes back repeats earlier numbers and then those that the topic began with, in order: earlier ones that
// come so were in the topic before this one. Other earlier ones came too late.
func Begins(numbers []uint64) uint64 {
	begins := numbers[0]
	for i := 1; i < len(numbers); {
		end := i + 1
		for end < len(numbers) && numbers[end] > numbers[end-1] {
			end++
		}
		if run := numbers[i:end]; run[0] < begins && !slices.Contains(run, numbers[0]) {
			begins = run[0]
		}
		i = end
	}
	return begins
}

// took reports whether the message may have gone with the topic.
func (l *Losses) took(name check.ID, committed time.Time) bool {
	if l.Emptied.IsZero() || l.Before[name] || committed.After(l.Emptied) {
		return false
	}
	first, kept := l.Kept[name.Key]
	return !kept || name.Seq < first
}

// ledger reads what the database has.
func (l *Load) ledger(ctx context.Context) (map[check.ID]struct{}, error) {
	rows, err := l.Pool().Query(ctx, "SELECT key, seq FROM ledger")
	if err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	defer rows.Close()
	found := make(map[check.ID]struct{})
	for rows.Next() {
		var key int32
		var seq int64
		if err := rows.Scan(&key, &seq); err != nil {
			return nil, fmt.Errorf("read the ledger: %w", err)
		}
		found[check.ID{Key: uint32(key), Seq: uint64(seq)}] = struct{}{}
	}
	return found, rows.Err()
}
