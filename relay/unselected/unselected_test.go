package unselected

import (
	"math/rand/v2"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
)

func TestMain(m *testing.M) { servers.Main(m) }

func TestATopicOfAnyLengthIsAmongThoseThatNobodySelects(t *testing.T) {
	t.Parallel()
	db := testdb.Published(t)
	u := New(db.Config(), "one", nil)
	long := make([]byte, 5000)
	for i := range long {
		long[i] = byte('a' + rand.N(26)) // what repeats is compressed
	}
	for _, m := range []outbox.Message{{Topic: string(long), EventType: string(long)},
		{Topic: string(long[:2000]) + "another"}, {Topic: "short"}, {Topic: "short"}} {
		m.ID = outbox.NewID()
		u.Note(&m)
	}
	if err := u.Close(); err != nil {
		t.Fatal(err)
	}
	if n := db.Value("SELECT sum(messages)::text FROM outbox.unselected WHERE topic = 'short' OR topic LIKE $1 || '%'",
		string(long[:900])); n != "4" {
		t.Errorf("%s messages are listed, want 4", n)
	}
	if u.Note(&outbox.Message{Topic: "short"}) {
		t.Error("a topic is new a second time")
	}
}

func TestWhatCannotBeListedNowIsListedLater(t *testing.T) {
	t.Parallel()
	db := testdb.Published(t)
	u := New(db.Config(), "one", nil)
	db.Exec("ALTER TABLE outbox.unselected RENAME TO gone")
	u.Note(&outbox.Message{ID: outbox.NewID(), Topic: "a"})
	if err := u.later.Flush(); err == nil {
		t.Fatal("it is written to a table that isn't there")
	}
	db.Exec("ALTER TABLE outbox.gone RENAME TO unselected")
	u.Note(&outbox.Message{ID: outbox.NewID(), Topic: "a"})
	if err := u.Close(); err != nil {
		t.Fatal(err)
	}
	if n := db.Value("SELECT sum(messages)::text FROM outbox.unselected WHERE topic = 'a'"); n != "2" {
		t.Errorf("%s messages are counted, want 2", n)
	}
}
