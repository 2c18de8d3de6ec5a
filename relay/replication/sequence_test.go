package replication

import (
	"errors"
	"testing"

	"github.com/pgoutbox/outbox/internal/cursors"
)

// Holds are sent by id, so new messages would come before those that wait.
func TestASequenceThatIsSetBackEndsTheSessionThatReadsTheLog(t *testing.T) {
	t.Parallel()
	db, _ := alone(t)
	source, _ := db.source("d", Config{})
	s := acquire(t, source)
	streaming(t, s)
	for range 5 {
		db.insert("m")
	}
	read(t, s, 5)
	if err := s.readMode(true); err != nil {
		t.Fatal(err)
	}
	db.Exec(`SELECT setval('outbox.messages_id_seq', 1)`)
	if err := s.readMode(true); err == nil || s.Table.Failure() == nil {
		t.Errorf("it goes on: %v", err)
	} else if !errors.Is(err, cursors.ErrSequence) && !errors.Is(s.Table.Failure(), cursors.ErrSequence) {
		t.Errorf("it ended with %v, %v", err, s.Table.Failure())
	}
}
