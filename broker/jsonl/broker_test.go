package jsonl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/jsonl"
	"github.com/pgoutbox/outbox/internal/await"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if path := os.Getenv("JSONL_TEST_APPEND"); path != "" {
		appendForEver(path)
	}
	goleak.VerifyTestMain(m)
}

var accepted = brokertest.Accepted

func message(key string, n int) *outbox.Message { return brokertest.Message("t", key, n) }

func open(t testing.TB, path string) *jsonl.Broker {
	t.Helper()
	b, err := jsonl.Open(path, jsonl.Config{})
	return brokertest.Opened(t, b, err)
}

func read(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// decode returns the ids of the lines, each of which must be an object.
func decode(t testing.TB, text string) (ids []string) {
	t.Helper()
	for line := range strings.Lines(text) {
		var l struct{ ID string }
		if err := json.Unmarshal([]byte(line), &l); err != nil || !strings.HasSuffix(line, "\n") || l.ID == "" {
			t.Fatalf("line %q: %v", line, err)
		}
		ids = append(ids, l.ID)
	}
	return ids
}

func TestALineHasAllFields(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	id, err := outbox.ParseID("0190a4f8-3c5e-7cc3-98c4-dc0c0c07398f")
	if err != nil {
		t.Fatal(err)
	}
	m := &outbox.Message{
		ID: id, Position: 42, Topic: "orders", Key: "k\n\"", AggregateType: "order", AggregateID: "7", EventType: "Created",
		ContentType: "application/json; charset=utf-8", Payload: []byte("{ \"n\": 12345678901234567890,\n\"s\": \"<é>\" }"),
		Headers:   []outbox.Header{{Name: "b", Value: "2"}, {Name: "a", Value: "1\r\n"}},
		CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 678000, time.FixedZone("", 3600)),
	}
	accepted(t, jsonl.New(&out).Publish(t.Context(), []*outbox.Message{m}))
	want := `{"id":"0190a4f8-3c5e-7cc3-98c4-dc0c0c07398f","position":42,"topic":"orders","key":"k\n\"","aggregate_type":"order",` +
		`"aggregate_id":"7","event_type":"Created","content_type":"application/json; charset=utf-8","headers":{"b":"2","a":"1\r\n"},` +
		`"created_at":"2026-01-02T02:04:05.000678Z","payload":{"n":12345678901234567890,"s":"<é>"},` +
		`"payload_base64":"eyAibiI6IDEyMzQ1Njc4OTAxMjM0NTY3ODkwLAoicyI6ICI8w6k+IiB9"}` + "\n"
	if out.String() != want {
		t.Errorf("got  %swant %s", out.String(), want)
	}
}

func TestPayloadsKeepTheirMeaning(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		contentType string
		payload     []byte
		want        string
	}{
		{"application/json", []byte(`"text"`), `"payload":"text"`},
		{"application/cloudevents+json", []byte(`[1, 2]`), `"payload":[1, 2]`},
		{"application/json", []byte(`null`), `"payload":null,"payload_base64":"bnVsbA=="`},
		{"application/json", []byte("{}\n"), `"payload":{},"payload_base64":"e30K"`},
		{"application/json", []byte("[1,\r2]"), `"payload":[1,2],"payload_base64":"WzEsDTJd"`},
		{"application/json", []byte(`{broken`), `"payload_base64":"e2Jyb2tlbg=="`},
		{"application/json", []byte("\"\xff\""), `"payload_base64":"Iv8i"`},
		{"application/json", []byte{}, `"payload_base64":""`},
		{"application/json", []byte(`""`), `"payload":""`},
		{"text/plain", []byte{}, `"payload":""`},
		{"", []byte(`{"a":1}`), `"payload":"{\"a\":1}"`},
		{"text/plain", []byte{0, 'a'}, `"payload_base64":"AGE="`},
		{"text/plain", []byte("two\nlines"), `"payload":"two\nlines"`},
		{"application/octet-stream", []byte{0, 0xff}, `"payload_base64":"AP8="`},
		{"application/octet-stream", nil, `"payload":null`},
	} {
		var out bytes.Buffer
		m := message("k", 0)
		m.ContentType, m.Payload = c.contentType, c.payload
		accepted(t, jsonl.New(&out).Publish(t.Context(), []*outbox.Message{m}))
		if line := out.String(); !strings.HasSuffix(line, ","+c.want+"}\n") {
			t.Errorf("%s %q: %s", c.contentType, c.payload, line)
		}
		got, err := jsonl.Decode(out.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Payload, c.payload) || (got.Payload == nil) != (c.payload == nil) {
			t.Errorf("%s %q came back as %q", c.contentType, c.payload, got.Payload)
		}
	}
}

func TestAFileIsAppendedTo(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "out.jsonl")
	var want []string
	for range 3 {
		b := open(t, path)
		batch := []*outbox.Message{message("a", 1), message("b", 1), message("a", 2)}
		accepted(t, b.Publish(t.Context(), batch))
		for _, m := range batch {
			want = append(want, m.ID.String())
		}
		for range 2 {
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if errs := b.Publish(t.Context(), batch); len(errs) != 3 ||
			!outbox.IsUnavailable(errs[0]) || !errors.Is(errs[2], outbox.ErrSkipped) {
			t.Errorf("closed, but: %v", errs)
		}
	}
	if got := decode(t, read(t, path)); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestACallOfManyBytesIsFollowedByOthers(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.jsonl")
	b := open(t, path)
	for i := range 4 {
		large := message("large", 2*i)
		large.Payload = bytes.Repeat([]byte{0, 0xff}, 3<<20) // twice what an encoder keeps
		accepted(t, b.Publish(t.Context(), []*outbox.Message{large}))
		accepted(t, b.Publish(t.Context(), []*outbox.Message{message("small", 2*i+1)}))
	}
	if ids := decode(t, read(t, path)); len(ids) != 8 {
		t.Errorf("%d lines", len(ids))
	}
}

func TestConcurrentCallsWriteWholeLines(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "out.jsonl")
	b := open(t, path)
	var calls sync.WaitGroup
	for n := range 8 {
		calls.Go(func() {
			for i := range 20 {
				accepted(t, b.Publish(t.Context(), []*outbox.Message{message(fmt.Sprint(n), i), message(fmt.Sprint(n), i)}))
			}
		})
	}
	calls.Wait()
	if got := decode(t, read(t, path)); len(got) != 8*20*2 {
		t.Errorf("%d lines", len(got))
	}
}

func TestATornLastLineIsRepaired(t *testing.T) {
	t.Parallel()
	whole := `{"id":"1"}` + "\n"
	long := `{"id":"2","payload":"` + strings.Repeat("x", 200_000)
	for before, after := range map[string]string{
		"":                                  "",
		whole:                               whole,
		whole + `{"id":"2","pay`:            whole,
		whole + `{"i`:                       whole,
		whole + long:                        whole,
		long:                                "",
		whole + long + `"}`:                 whole + long + `"}` + "\n",
		whole + strings.Repeat("\x00", 100): whole,
	} {
		path := filepath.Join(t.TempDir(), "out.jsonl")
		if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
			t.Fatal(err)
		}
		b := open(t, path)
		if got := read(t, path); got != after {
			t.Errorf("from %.40q: %.60q, want %.60q", before, got, after)
		}
		m := message("k", 1)
		accepted(t, b.Publish(t.Context(), []*outbox.Message{m}))
		if got := decode(t, read(t, path)); got[len(got)-1] != m.ID.String() {
			t.Errorf("from %.40q: %v", before, got)
		}
	}
}

func TestAFileOfSomebodyElseIsNotTouched(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "notes.txt")
	if err := os.WriteFile(path, []byte("line\nlast words"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := jsonl.Open(path, jsonl.Config{}); err == nil || !strings.Contains(err.Error(), "last line") {
		t.Errorf("open: %v", err)
	}
	if got := read(t, path); got != "line\nlast words" {
		t.Errorf("now it is %q", got)
	}
	if _, err := jsonl.Open(filepath.Join(path, "x"), jsonl.Config{}); err == nil {
		t.Error("opened a file below a file")
	}
	if _, err := jsonl.Open("/dev/null", jsonl.Config{}); err == nil || !strings.Contains(err.Error(), "regular file") {
		t.Errorf("open a device: %v", err)
	}
}

func TestASecondRelayOnTheFileIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "out.jsonl")
	first := open(t, path)
	if _, err := jsonl.Open(path, jsonl.Config{}); err == nil || !strings.Contains(err.Error(), "another relay") {
		t.Fatalf("second: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, path)
}

func TestARotatedFileIsCreatedAnew(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "out.jsonl")
	b := open(t, path)
	first, second, third := message("k", 1), message("k", 2), message("k", 3)
	accepted(t, b.Publish(t.Context(), []*outbox.Message{first}))
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	accepted(t, b.Publish(t.Context(), []*outbox.Message{second}))
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	accepted(t, b.Publish(t.Context(), []*outbox.Message{third}))
	if got := decode(t, read(t, path+".1")+read(t, path)); fmt.Sprint(got) != fmt.Sprint([]string{first.ID.String(), third.ID.String()}) {
		t.Errorf("got %v", got)
	}
	if err := b.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	if err := b.Ping(t.Context()); !outbox.IsUnavailable(err) {
		t.Errorf("without its folder: %v", err)
	}
}

func TestAGoneReaderIsUnavailable(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	b := jsonl.New(w)
	accepted(t, b.Publish(t.Context(), []*outbox.Message{message("k", 1)}))
	r.Close()
	errs := b.Publish(t.Context(), []*outbox.Message{message("k", 2), message("k", 3), message("", 1)})
	if len(errs) != 3 || !outbox.IsUnavailable(errs[0]) || !errors.Is(errs[1], outbox.ErrSkipped) || !outbox.IsUnavailable(errs[2]) {
		t.Fatalf("outcomes %v", errs)
	}
	if !errors.Is(errs[0], syscall.EPIPE) || !strings.Contains(errs[0].Error(), "gone") {
		t.Errorf("outcome %v", errs[0])
	}
}

// limited takes only so many bytes.
type limited struct {
	bytes.Buffer
	room int
}

func (l *limited) Write(p []byte) (int, error) {
	if len(p) > l.room {
		n, _ := l.Buffer.Write(p[:l.room])
		l.room = 0
		return n, syscall.ENOSPC
	}
	l.room -= len(p)
	return l.Buffer.Write(p)
}

func TestATornLineOfAStreamSpoilsNoOther(t *testing.T) {
	t.Parallel()
	out := &limited{room: 150}
	b := jsonl.New(out)
	batch := []*outbox.Message{message("a", 1), message("a", 2), message("a", 3)}
	errs := b.Publish(t.Context(), batch)
	if len(errs) != 3 || errs[0] != nil || !outbox.IsUnavailable(errs[1]) || !errors.Is(errs[2], outbox.ErrSkipped) {
		t.Fatalf("outcomes %v after %q", errs, out.String())
	}
	out.room = 10_000
	accepted(t, b.Publish(t.Context(), batch[1:]))
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 4 {
		t.Fatalf("lines %q", lines)
	}
	decode(t, lines[0]+"\n"+lines[2]+"\n"+lines[3]+"\n")
}

func TestTheEndOfTheContextLeavesAStuckWrite(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	b := jsonl.New(w)
	big := message("k", 1)
	big.Payload = bytes.Repeat([]byte("x"), 1<<20) // more than a pipe holds
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), await.Expiry(50*time.Millisecond))
		errs := b.Publish(ctx, []*outbox.Message{big})
		cancel()
		if len(errs) != 1 || !outbox.IsUnavailable(errs[0]) || !errors.Is(errs[0], context.DeadlineExceeded) {
			t.Errorf("outcomes %v", errs)
		}
	}
	r.Close() // ends the write
	w.Close()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// appendForEver is the body of the process that TestAKilledRelayLosesNothing kills. It prints the ids of
// accepted messages.
func appendForEver(path string) {
	var b *jsonl.Broker
	var err error
	if strings.HasSuffix(path, "/") {
		b, err = jsonl.NewArchive(path, jsonl.ArchiveConfig{Size: 300_000})
	} else {
		b, err = jsonl.Open(path, jsonl.Config{})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for i := 0; ; i++ {
		m := message("k", i)
		m.Payload = bytes.Repeat([]byte("x"), 100_000)
		if errs := b.Publish(context.Background(), []*outbox.Message{m}); errs != nil {
			fmt.Fprintln(os.Stderr, errs)
			os.Exit(1)
		}
		fmt.Println(m.ID)
	}
}

func TestAKilledRelayLosesNothing(t *testing.T) {
	// Not parallel: a process that begins holds the locks of all files for a moment.
	path := filepath.Join(t.TempDir(), "out.jsonl")
	reported := killed(t, path)
	open(t, path)
	for _, id := range decode(t, read(t, path)) {
		delete(reported, id)
	}
	if len(reported) > 0 {
		t.Errorf("%d accepted messages are not in the file", len(reported))
	}
}

func TestAKilledRelayLosesNothingOfAnArchive(t *testing.T) {
	// Not parallel: a process that begins holds the locks of all files for a moment.
	dir := t.TempDir()
	reported := killed(t, dir+"/")
	if got := names(t, dir, "*.gz"); got[0] < 5 {
		t.Errorf("%d compressed files", got[0])
	}
	for _, id := range ids(t, dir) {
		delete(reported, id)
	}
	if len(reported) > 0 {
		t.Errorf("%d accepted messages are not in the archive", len(reported))
	}
}

// killed has relays append to path, each until it is killed, and returns the ids of what they reported as accepted.
func killed(t *testing.T, path string) map[string]bool {
	t.Helper()
	reported := map[string]bool{}
	for range 5 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "JSONL_TEST_APPEND="+path)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var id string
		for range 7 {
			if _, err := fmt.Fscanln(out, &id); err != nil {
				t.Fatal(err)
			}
			reported[id] = true
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
	}
	return reported
}

func BenchmarkPublish(b *testing.B) {
	broker := open(b, filepath.Join(b.TempDir(), "out.jsonl"))
	var batch []*outbox.Message
	for i := range 1000 {
		m := message(fmt.Sprint(i%100), i)
		m.ContentType, m.Payload = "application/json", []byte(`{"order":7,"total":"19.99","lines":[{"sku":"a","n":1},{"sku":"b","n":2}]}`)
		batch = append(batch, m)
	}
	b.ReportAllocs()
	for b.Loop() {
		accepted(b, broker.Publish(b.Context(), batch))
	}
	b.ReportMetric(float64(b.N)*float64(len(batch))/b.Elapsed().Seconds(), "msg/s")
}

func TestAProbeLeavesNoFileBehind(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "out.jsonl")
	for _, publish := range []bool{false, true} {
		b := jsonl.NewFile(path, jsonl.Config{})
		if err := b.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		if publish {
			accepted(t, b.Publish(t.Context(), []*outbox.Message{message("k", 1)}))
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) == publish {
			t.Errorf("after a probe, with a message written: %v: %v", publish, err)
		}
	}
}
