package jsonl_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/jsonl"
)

func archive(t testing.TB, dir string, cfg jsonl.ArchiveConfig) *jsonl.Broker {
	t.Helper()
	b, err := jsonl.NewArchive(dir, cfg)
	return brokertest.Opened(t, b, err)
}

func readArchive(dir string) (all []outbox.Message, err error) {
	files, err := jsonl.Files(dir)
	for _, f := range files {
		for m, err := range f.Messages() {
			if err != nil {
				return nil, err
			}
			all = append(all, *m)
		}
	}
	return all, err
}

// names returns the patterns' numbers of files.
func names(t testing.TB, dir string, patterns ...string) (n []int) {
	t.Helper()
	for _, p := range patterns {
		found, err := filepath.Glob(filepath.Join(dir, p))
		if err != nil {
			t.Fatal(err)
		}
		n = append(n, len(found))
	}
	return n
}

func ids(t testing.TB, dir string) (all []string) {
	t.Helper()
	messages, err := readArchive(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		all = append(all, m.ID.String())
	}
	return all
}

func TestAFullFileOfAnArchiveIsCompressedAndNamedAfterItsRange(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := archive(t, dir, jsonl.ArchiveConfig{Size: 1})
	begin := time.Date(2026, 5, 1, 12, 0, 0, 999_999_000, time.UTC)
	var want []outbox.Message
	for i := range 4 {
		m := message("k", i)
		m.Position, m.CreatedAt = int64(40+i), begin.Add(time.Duration(i)*time.Hour)
		m.Headers = []outbox.Header{{Name: "z", Value: "<1>"}, {Name: "a", Value: "2"}}
		m.DeliverAt, m.Payload = begin, []byte{0, byte(i), 255}
		want = append(want, *m)
	}
	accepted(t, b.Publish(t.Context(), []*outbox.Message{&want[1], &want[0], &want[2]}))
	if got := names(t, dir, "*.gz", "*.jsonl"); !reflect.DeepEqual(got, []int{0, 1}) {
		t.Errorf("compressed and open files: %v", got)
	}
	accepted(t, b.Publish(t.Context(), []*outbox.Message{&want[3]}))
	const finished = "*_20260501T120000Z-20260501T140000Z_40-42_3.jsonl.gz"
	if got := names(t, dir, finished, "*.jsonl", "*"); !reflect.DeepEqual(got, []int{1, 1, 2}) {
		t.Errorf("files: %v", got)
	}
	files, err := jsonl.Files(dir)
	if err != nil || len(files) != 2 {
		t.Fatalf("%v, %v", files, err)
	}
	newest := begin.Truncate(time.Hour).Add(2 * time.Hour)
	if f := files[0]; f.Open || f.First != 40 || f.Last != 42 || f.Count != 3 || !f.Newest.Equal(newest) {
		t.Errorf("finished: %+v", f)
	}
	if f := files[1]; !f.Open || f.First != 43 || f.Last != 43 || f.Count != 1 {
		t.Errorf("open: %+v", f)
	}
	for _, f := range files {
		if info, err := os.Stat(f.Path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f.Path, info, err)
		}
	}
	got, err := readArchive(dir)
	if err != nil {
		t.Fatal(err)
	}
	if want[0], want[1] = want[1], want[0]; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestAnOldFileOfAnArchiveIsEndedWithoutAnotherMessage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := archive(t, dir, jsonl.ArchiveConfig{Age: 1})
	accepted(t, b.Publish(t.Context(), []*outbox.Message{message("k", 1)}))
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir, "*.gz", "*"); !reflect.DeepEqual(got, []int{1, 2}) {
		t.Errorf("compressed and all files: %v", got)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir, "*.gz", "*"); !reflect.DeepEqual(got, []int{1, 1}) {
		t.Errorf("closed, compressed and all files: %v", got)
	}
}

func TestArchivesInOneDirectoryLeaveEachOthersFilesAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second := archive(t, dir, jsonl.ArchiveConfig{}), archive(t, dir, jsonl.ArchiveConfig{Size: 1})
	var want []*outbox.Message
	for i := range 10 {
		batch := []*outbox.Message{message("a", i), message("b", i)}
		accepted(t, first.Publish(t.Context(), batch[:1]))
		accepted(t, second.Publish(t.Context(), batch[1:]))
		want = append(want, batch...)
	}
	if got := names(t, dir, "*.gz", "*.jsonl"); !reflect.DeepEqual(got, []int{9, 2}) {
		t.Errorf("compressed and open files: %v", got)
	}
	if got := ids(t, dir); len(got) != len(want) {
		t.Errorf("%d messages of %d", len(got), len(want))
	}
}

// Each state is one that a crash can leave: torn lines, or a file that is compressed and not yet removed.
func TestWhatACrashLeftInAnArchiveIsReadOnceAndCompressed(t *testing.T) {
	t.Parallel()
	for name, crash := range map[string]func(t *testing.T, dir, open string){
		"whole": func(*testing.T, string, string) {},
		"torn": func(t *testing.T, _, open string) {
			write(t, open, read(t, open)+`{"id":"0190a4f8-3c5e-7cc3-98c4-dc0c0c07398f","top`)
		},
		"zeros":           func(t *testing.T, _, open string) { write(t, open, read(t, open)+strings.Repeat("\x00", 100)) },
		"half compressed": func(t *testing.T, _, open string) { write(t, open+".gz.tmp", "\x1f\x8b") },
		"not yet removed": func(t *testing.T, dir, open string) {
			text := read(t, open)
			next := archive(t, dir, jsonl.ArchiveConfig{})
			if err := errors.Join(next.Ping(t.Context()), next.Close()); err != nil {
				t.Fatal(err)
			}
			if got := names(t, dir, "*.gz"); got[0] != 1 {
				t.Fatalf("%d files", got[0])
			}
			write(t, open, text)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			b := archive(t, dir, jsonl.ArchiveConfig{})
			batch := brokertest.Messages("t", 7, 3)
			accepted(t, b.Publish(t.Context(), batch))
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			found, _ := filepath.Glob(filepath.Join(dir, "*.jsonl"))
			crash(t, dir, found[0])
			var want []string
			for _, m := range batch {
				want = append(want, m.ID.String())
			}
			if got := ids(t, dir); !reflect.DeepEqual(got, want) {
				t.Errorf("before: got %v, want %v", got, want)
			}
			accepted(t, archive(t, dir, jsonl.ArchiveConfig{}).Publish(t.Context(), []*outbox.Message{message("last", 1)}))
			if got := names(t, dir, "*.gz", "*.jsonl", "*"); !reflect.DeepEqual(got, []int{1, 1, 2}) {
				t.Errorf("files: %v", got)
			}
			if got := ids(t, dir); len(got) != len(want)+1 {
				t.Errorf("after: got %v, want %v and one", got, want)
			}
		})
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAListedFileIsReadAfterItWasCompressed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := archive(t, dir, jsonl.ArchiveConfig{Age: 1})
	m := message("k", 1)
	accepted(t, b.Publish(t.Context(), []*outbox.Message{m}))
	files, err := jsonl.Files(dir)
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := 0
	for got, err := range files[0].Messages() {
		if n++; err != nil || got.ID != m.ID {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if n != 1 {
		t.Errorf("%d messages", n)
	}
}

func TestOldMessagesLeaveAnArchive(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keep := jsonl.ArchiveConfig{Age: 1, Keep: 24 * time.Hour}
	b := archive(t, dir, keep)
	old, recent, timeless := message("k", 1), message("k", 2), message("k", 3)
	old.CreatedAt, recent.CreatedAt = time.Now().Add(-48*time.Hour), time.Now()
	for _, m := range []*outbox.Message{old, recent, timeless} {
		accepted(t, b.Publish(t.Context(), []*outbox.Message{m}))
	}
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "notes.txt"), "not ours")
	if got := names(t, dir, "*.gz"); got[0] != 3 {
		t.Fatalf("%d files; what was finished just now stays", got[0])
	}
	all, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		if err := os.Chtimes(path, old.CreatedAt, old.CreatedAt); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive(t, dir, keep).Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := ids(t, dir); !reflect.DeepEqual(got, []string{recent.ID.String()}) {
		t.Errorf("left: %v, want %s", got, recent.ID)
	}
	if got := names(t, dir, "notes.txt"); got[0] != 1 {
		t.Error("a file of somebody else is gone")
	}
}

func TestADamagedFileOfAnArchiveIsAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := archive(t, dir, jsonl.ArchiveConfig{Age: 1})
	accepted(t, b.Publish(t.Context(), brokertest.Messages("t", 100, 3)))
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	files, err := jsonl.Files(dir)
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	whole := []byte(read(t, files[0].Path))
	flipped := bytes.Clone(whole)
	flipped[len(flipped)-6] ^= 1 // of the checksum
	var unended bytes.Buffer
	small := gzip.NewWriter(&unended)
	fmt.Fprint(small, `{"id":"`+outbox.NewID().String()+`"`)
	if err := small.Close(); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"flipped": flipped, "short": whole[:len(whole)/2], "no end": unended.Bytes(), "empty": {}} {
		write(t, files[0].Path, string(text))
		if _, err := readArchive(dir); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := readArchive(filepath.Join(dir, "none")); err == nil {
		t.Error("a directory that isn't there is read")
	}
}

func TestAMissingDirectoryIsAnOutageThatEnds(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "mounted later")
	b := archive(t, dir, jsonl.ArchiveConfig{})
	batch := []*outbox.Message{message("k", 1)}
	brokertest.CheckFirst(t, b, batch, "unavailable")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	accepted(t, b.Publish(t.Context(), batch))
}

func TestOtherProgramsReadAnArchive(t *testing.T) {
	// Not parallel: a process that begins holds the locks of all files for a moment.
	for _, tool := range []string{"zcat", "python3"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%v; CI has it", err)
		}
	}
	dir := t.TempDir()
	b := archive(t, dir, jsonl.ArchiveConfig{Age: 1})
	m := message("k", 1)
	m.ContentType, m.Payload = "application/json", []byte("{\"n\": 1,\r\n\"s\": \"\u2028<é>\"}")
	accepted(t, b.Publish(t.Context(), []*outbox.Message{m}))
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	script := `import sys, json, base64
for line in sys.stdin:
    m = json.loads(line)
    assert json.loads(base64.b64decode(m["payload_base64"])) == m["payload"]
    print(m["id"], m["payload"]["n"])`
	out, err := exec.Command("sh", "-c", `zcat "$0"/*.gz | python3 -c "$1"`, dir, script).CombinedOutput()
	if want := m.ID.String() + " 1\n"; err != nil || string(out) != want {
		t.Errorf("%v: got %q, want %q", err, out, want)
	}
}
