package inbox

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/internal/sqlstate"
)

func numbered(key string, n int64) *outbox.Message {
	msg := message(key)
	msg.Headers = []outbox.Header{{Name: outbox.SequenceHeader, Value: strconv.FormatInt(n, 10)}}
	return msg
}

// told is what came of messages that were handled one after the other: "1 applied", "4 missing 2-3", "2 gap 1-1".
func told(t *testing.T, w *world, b *Inbox, key string, sequence ...int64) string {
	t.Helper()
	var all []string
	for _, n := range sequence {
		result, err := b.Handle(t.Context(), w.pool, numbered(key, n), effect)
		var gap *GapError
		switch {
		case errors.As(err, &gap):
			all = append(all, fmt.Sprintf("%d gap %d-%d", n, gap.Gap.First, gap.Gap.Last))
		case err != nil:
			t.Fatal(err)
		case result.Missing != nil:
			all = append(all, fmt.Sprintf("%d %s missing %d-%d", n, result.Outcome, result.Missing.First, result.Missing.Last))
		default:
			all = append(all, fmt.Sprintf("%d %s", n, result.Outcome))
		}
	}
	return strings.Join(all, ", ")
}

func (w *world) gaps() string {
	w.t.Helper()
	var text string
	if err := w.pool.QueryRow(w.t.Context(), `SELECT coalesce(string_agg(key || ' ' || first || '-' || last, ', ' ORDER BY key, first), '') FROM outbox.inbox_gaps`).Scan(&text); err != nil {
		w.t.Fatal(err)
	}
	return text
}

func TestAGapIsReportedAndClosedByWhatComesLate(t *testing.T) {
	t.Parallel()
	onMajors(t, func(t *testing.T, w *world) {
		var log strings.Builder
		b := newInbox(t, Config{Gaps: GapReport, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		for _, step := range []struct {
			sequence   []int64
			want, gaps string
		}{
			{[]int64{1, 2}, "1 applied, 2 applied", ""},
			{[]int64{7}, "7 applied missing 3-6", "k 3-6"},
			{[]int64{8, 8, 2}, "8 applied, 8 duplicate, 2 duplicate", "k 3-6"},
			{[]int64{5}, "5 applied", "k 3-4, k 6-6"},
			{[]int64{5, 3}, "5 duplicate, 3 applied", "k 4-4, k 6-6"},
			{[]int64{6, 4, 4}, "6 applied, 4 applied, 4 duplicate", ""},
			{[]int64{10}, "10 applied missing 9-9", "k 9-9"},
		} {
			if got := told(t, w, b, "k", step.sequence...); got != step.want || w.gaps() != step.gaps {
				t.Errorf("%v: %s, gaps %s, want %s, gaps %s", step.sequence, got, w.gaps(), step.want, step.gaps)
			}
		}
		// A message that came before is forgotten when its record is; its number isn't.
		w.exec(`TRUNCATE outbox.inbox_0, outbox.inbox_1, outbox.inbox_2`)
		if got := told(t, w, b, "k", 8, 9); got != "8 duplicate, 9 applied" {
			t.Errorf("after the records were emptied: %s", got)
		}
		if n := w.int(`SELECT count(*) FROM effects`); n != 10 {
			t.Errorf("%d effects, want 10", n)
		}
		if text := log.String(); strings.Count(text, "level=WARN") != 2 ||
			!strings.Contains(text, "first_missing=3 last_missing=6") || !strings.Contains(text, "message_id=") {
			t.Errorf("logged: %s", text)
		}
	})
}

func TestAMessageBehindAGapWaits(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b := newInbox(t, Config{Gaps: GapWait})
	if got, want := told(t, w, b, "k", 2, 1, 4, 2, 4, 3,
		4), "2 gap 1-1, 1 applied, 4 gap 2-3, 2 applied, 4 gap 3-3, 3 applied, 4 applied"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := told(t, w, b, "other", 1); got != "1 applied" {
		t.Errorf("another key: %s", got)
	}
	if n := w.recorded(); n != 5 || w.gaps() != "" {
		t.Errorf("%d records, gaps %q", n, w.gaps())
	}
}

func TestAConsumerThatJoinsLateTakesTheFirstThatComesForTheFirst(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b := newInbox(t, Config{Gaps: GapWait, FromAnywhere: true})
	if got, want := told(t, w, b, "k", 7, 9, 8, 9), "7 applied, 9 gap 8-8, 8 applied, 9 applied"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestAHandlersErrorLeavesThePositionOfItsKey(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b := newInbox(t, Config{Gaps: GapWait})
	boom := errors.New("boom")
	msg := numbered("k", 1)
	if _, err := b.Handle(t.Context(), w.pool, msg, func(context.Context, pgx.Tx, *outbox.Message) error {
		return boom
	}); !errors.Is(err, boom) {
		t.Fatal(err)
	}
	if got := told(t, w, b, "k", 2, 1, 2); got != "2 gap 1-1, 1 applied, 2 applied" {
		t.Error(got)
	}
}

func TestOnlyWhatIsNewerIsApplied(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(`CREATE TABLE "Invoices" (id bigint PRIMARY KEY, "Rev" bigint, note text)`)
	version := func(msg *outbox.Message) (int64, error) { return strconv.ParseInt(string(msg.Payload), 10, 64) }
	for name, cfg := range map[string]Config{
		"its own table":       {Version: version},
		"the caller's column": {Version: version, Column: &VersionColumn{Table: "public.Invoices", Key: "id", Version: "Rev"}},
	} {
		for i, way := range ways() {
			consumer, err := New(name+way.name, cfg)
			if err != nil {
				t.Fatal(err)
			}
			key := strconv.Itoa(i)
			var outcomes []string
			for _, v := range []string{"2", "1", "2", "5", "4", "6"} {
				msg := message(key)
				msg.Payload = []byte(v)
				query := effectQuery
				if cfg.Column != nil {
					query = `INSERT INTO "Invoices" (id, "Rev", note) VALUES ($2::text::bigint, ` +
						v + `, $1::text) ON CONFLICT (id) DO UPDATE SET "Rev" = excluded."Rev"`
				}
				result, err := way.handle(t.Context(), w, consumer, msg, query)
				if err != nil {
					t.Fatalf("%s, %s: %v", name, way.name, err)
				}
				outcomes = append(outcomes, string(result.Outcome))
				if again, err := way.handle(t.Context(), w, consumer, msg, query); err != nil || again.Outcome != Duplicate {
					t.Errorf("%s, %s: version %s again: %+v, %v", name, way.name, v, again, err)
				}
			}
			if got := strings.Join(outcomes, " "); got != "applied stale stale applied stale applied" {
				t.Errorf("%s, %s: %s", name, way.name, got)
			}
		}
	}
}

func TestOfTwoVersionsAtOnceTheNewerStays(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(`CREATE TABLE invoices (id text PRIMARY KEY, rev bigint)`)
	w.exec(`INSERT INTO invoices VALUES ('k', NULL)`)
	version := func(msg *outbox.Message) (int64, error) { return strconv.ParseInt(string(msg.Payload), 10, 64) }
	for name, cfg := range map[string]Config{
		"table":  {Version: version},
		"column": {Version: version, Column: &VersionColumn{Table: "invoices", Key: "id", Version: "rev"}},
	} {
		b, err := New(name, cfg)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for v := range 20 {
			all.Go(func() {
				msg := message("k")
				msg.Payload = []byte(strconv.Itoa(v + 1))
				if _, err := b.Handle(t.Context(), w.pool, msg, func(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
					_, err := tx.Exec(ctx, `UPDATE invoices SET rev = $1 WHERE id = 'k'`, v+1)
					return err
				}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if rev := w.int(`SELECT rev FROM invoices`); rev != 20 {
			t.Errorf("%s: version %d stayed", name, rev)
		}
		w.exec(`UPDATE invoices SET rev = NULL`)
	}
}

// A row that isn't there can't be locked.
func TestOfTwoFirstVersionsAtOnceTheNewerStays(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(`CREATE TABLE "in'voices" (id text PRIMARY KEY, rev bigint)`)
	version := func(msg *outbox.Message) (int64, error) { return strconv.ParseInt(string(msg.Payload), 10, 64) }
	b := newInbox(t, Config{Version: version, Column: &VersionColumn{Table: "in'voices", Key: "id", Version: "rev"}})
	upsert := func(version string) string {
		return `INSERT INTO "in'voices" (id, rev) SELECT $2, ` + version + ` WHERE $1::text <> ''
			ON CONFLICT (id) DO UPDATE SET rev = excluded.rev`
	}
	for _, way := range ways() {
		newer, older := message(way.name), message(way.name)
		newer.Payload, older.Payload = []byte("2"), []byte("1")
		var behind sync.WaitGroup
		if _, err := b.Handle(t.Context(), w.pool, newer, func(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
			_, err := tx.Exec(ctx, upsert("2"), msg.ID.String(), msg.Key)
			behind.Go(func() {
				if result, err := way.handle(t.Context(), w, b, older, upsert("1")); err != nil || result.Outcome != Stale {
					t.Errorf("%s: the older one: %+v, %v", way.name, result, err)
				}
			})
			await.Until(t, "the older one to wait", func() bool { return w.waiting() == 1 })
			return err
		}); err != nil {
			t.Fatal(err)
		}
		behind.Wait()
		if rev := w.int(`SELECT rev FROM "in'voices" WHERE id = $1`, way.name); rev != 2 {
			t.Errorf("%s: version %d stayed", way.name, rev)
		}
	}
}

func TestAMissingVersionColumnIsAnError(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b := newInbox(t, Config{Version: func(*outbox.Message) (int64, error) { return 1, nil },
		Column: &VersionColumn{Table: "effects", Key: "key", Version: "rev"}})
	_, err := b.HandleSQL(t.Context(), w.db, message("k"), func(context.Context, *sql.Tx, *outbox.Message) error { return nil })
	if sqlstate.Of(err) != "42703" {
		t.Error(err)
	}
}

func TestGapsOfManyKeysAreToldInAFewLines(t *testing.T) {
	t.Parallel()
	w := setup(t)
	var log bytes.Buffer
	b := newInbox(t, Config{Gaps: GapReport, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for i := range 100 {
		told(t, w, b, fmt.Sprint("k", i), 5) // 1 to 4 are missing
	}
	settings.Flush(b.cfg.Logger)
	if n := strings.Count(log.String(), "\n"); n != settings.LogLines+1 || !strings.Contains(log.String(), "more=88") {
		t.Errorf("%d lines:\n%s", n, &log)
	}
}
