package jsonl

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/settings"
)

// ArchiveConfig configures a broker that writes an archive. The zero value means the stated defaults.
type ArchiveConfig struct {
	// Size is how many bytes of lines a file gets before it is compressed. A call waits while that is done, about a
	// second for 64 MiB. Default 64 MiB.
	Size int64

	// Age is how long lines are added to a file, if it doesn't reach Size before. Default 1 h.
	Age time.Duration

	// Keep is how long messages are kept. A file is removed when it was finished longer ago, and all its messages were
	// created longer ago. Default 0: nothing is removed.
	Keep time.Duration

	// Logger reports finished, repaired and removed files; nil: slog.Default.
	Logger *slog.Logger
}

// ArchiveDefaults returns the ArchiveConfig that the zero value stands for.
func ArchiveDefaults() ArchiveConfig {
	cfg, _ := ArchiveConfig{}.withDefaults(".")
	return cfg
}

func (cfg ArchiveConfig) withDefaults(dir string) (ArchiveConfig, error) {
	var faults settings.Faults
	faults.Need(dir != "", "Directory", "not given; name the directory")
	settings.Positive(&faults, "Size", &cfg.Size, 64<<20)
	settings.Positive(&faults, "Age", &cfg.Age, time.Hour)
	faults.Need(cfg.Keep >= 0, "Keep", "must not be negative")
	cfg.Logger = settings.Logger(cfg.Logger)
	return cfg, faults.Err()
}

// NewArchive returns a broker that writes an archive into a directory, which has to exist when the first message comes.
// A message is accepted when its line is on disk. Any number of brokers, of any number of processes, may write into one
// directory: each has a file of its own.
//
// Lines go to a plain file, which becomes a compressed one when it is large or old enough. What a process left behind,
// the next one that opens or ends a file compresses. See [Files] for names and for reading.
func NewArchive(dir string, cfg ArchiveConfig) (*Broker, error) {
	cfg, err := cfg.withDefaults(dir)
	if err != nil {
		return nil, fmt.Errorf("jsonl: archive: %w", err)
	}
	return newBroker(&archive{dir: dir, cfg: cfg}), nil
}

// archive is a sink that begins a new file now and then, and compresses those that are complete.
type archive struct {
	dir string
	cfg ArchiveConfig

	now   *file // nil: none
	size  int64
	since time.Time // when the first line was written; zero without one
}

func (a *archive) write(lines []byte) (int, error) {
	if err := a.ready(); err != nil {
		return 0, err
	}
	n, err := a.now.write(lines)
	if a.size += int64(n); n > 0 && a.since.IsZero() {
		a.since = time.Now()
	}
	return n, err
}

// ready ends a file that is large or old enough, and opens the next one.
func (a *archive) ready() error {
	if a.now != nil && !a.since.IsZero() && (a.size >= a.cfg.Size || time.Since(a.since) >= a.cfg.Age) {
		err := a.now.close()
		a.now = nil
		if err != nil {
			return err
		}
	}
	if a.now != nil {
		return a.now.ready()
	}
	if err := a.sweep(); err != nil {
		return err
	}
	// Should two processes read the same time, to the nanosecond, the lock refuses one of them, and it tries again.
	next := &file{path: filepath.Join(a.dir, time.Now().UTC().Format(startLayout)+".jsonl"), logger: a.cfg.Logger}
	if err := next.open(); err != nil {
		return err
	}
	a.now, a.size, a.since = next, 0, time.Time{}
	return nil
}

// close leaves lines to the next sweep, which needn't be over before a relay is told to end.
func (a *archive) close() error {
	if a.now == nil {
		return nil
	}
	if a.since.IsZero() {
		os.Remove(a.now.path) // nothing is lost if this fails
	}
	return a.now.close()
}

// sweep compresses the files that no process writes to, and removes the ones that are too old. One that can't be
// compressed stays as it is, readable, until the next sweep.
func (a *archive) sweep() error {
	files, err := list(a.dir)
	if err != nil {
		return fmt.Errorf("jsonl: archive %s: %w", a.dir, plain(err))
	}
	for _, f := range files {
		if f.Open {
			if err := a.finish(f); err != nil && !errors.Is(err, ErrLocked) {
				a.cfg.Logger.Warn("file of the archive stays uncompressed", "path", f.Path, "error", err)
			}
			continue
		}
		if bound := time.Now().Add(-a.cfg.Keep); a.cfg.Keep > 0 && f.Newest.Before(bound) && f.finished.Before(bound) {
			if err := os.Remove(f.Path); err != nil {
				a.cfg.Logger.Warn("old file of the archive could not be removed", "path", f.Path, "error", err)
				continue
			}
			a.cfg.Logger.Info("old file of the archive removed", "path", f.Path, "messages", f.Count)
		}
	}
	return nil
}

// finish compresses a file. A crash at any moment leaves the plain file, the compressed one, or both; then readers take
// the compressed one, and the next sweep makes it again, under the same name.
func (a *archive) finish(f ArchiveFile) (err error) {
	lines := &file{path: f.Path, logger: a.cfg.Logger}
	if err := lines.open(); err != nil {
		return err
	}
	defer lines.close()
	temporary := f.Path + ".gz.tmp"
	if err := f.compress(temporary); err != nil {
		os.Remove(temporary)
		return lines.fault("compress", err)
	}
	if f.Count == 0 {
		os.Remove(temporary)
		return os.Remove(f.Path)
	}
	finished := filepath.Join(a.dir, f.name())
	if err := os.Rename(temporary, finished); err != nil {
		return err
	}
	if err := syncDir(a.dir); err != nil {
		return err
	}
	if err := os.Remove(f.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	a.cfg.Logger.Info("file of the archive finished", "path", finished, "messages", f.Count)
	return nil
}

// compress writes the lines to a file at path, on disk when it returns, and notes their range.
func (f *ArchiveFile) compress(path string) error {
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	small := gzip.NewWriter(out)
	if err := f.note(small); err != nil {
		return err
	}
	return errors.Join(small.Close(), out.Sync(), out.Close())
}

// ArchiveFile is a file of an archive, with the range of its messages.
type ArchiveFile struct {
	Path string `json:"path"`

	// Open means that it is not compressed yet: a relay writes to it, or has been killed.
	Open bool `json:"open"`

	Oldest time.Time `json:"oldest,omitzero"` // when the first of its messages was created, to the second
	Newest time.Time `json:"newest,omitzero"`
	First  int64     `json:"first_position"`
	Last   int64     `json:"last_position"`
	Count  int64     `json:"messages"` // with repeats
	Bytes  int64     `json:"bytes"`    // on disk

	start    string // the time in its name
	finished time.Time
}

const (
	startLayout = "20060102T150405.000000000Z" // in names, when a file was begun
	stamp       = "20060102T150405Z"           // when messages were created
)

// name states the range. Names sort by when their files were begun, so a relay's sort in the order of delivery.
func (f ArchiveFile) name() string {
	return fmt.Sprintf("%s_%s-%s_%d-%d_%d.jsonl.gz",
		f.start, f.Oldest.Format(stamp), f.Newest.Format(stamp), f.First, f.Last, f.Count)
}

var (
	openName     = regexp.MustCompile(`^([0-9]{8}T[0-9]{6}\.[0-9]{9}Z)\.jsonl$`)
	finishedName = regexp.MustCompile(`^([0-9]{8}T[0-9]{6}\.[0-9]{9}Z)_` +
		`([0-9]{8}T[0-9]{6}Z)-([0-9]{8}T[0-9]{6}Z)_(-?[0-9]+)-(-?[0-9]+)_([0-9]+)\.jsonl\.gz$`)
)

// list names the files of an archive in the order of their names. It doesn't know the range of open ones.
func list(dir string) (files []ArchiveFile, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		f := ArchiveFile{Path: filepath.Join(dir, e.Name())}
		if parts := openName.FindStringSubmatch(e.Name()); parts != nil {
			f.Open, f.start = true, parts[1]
		} else if parts := finishedName.FindStringSubmatch(e.Name()); parts != nil {
			f.start = parts[1]
			var faults [5]error
			f.Oldest, faults[0] = time.Parse(stamp, parts[2])
			f.Newest, faults[1] = time.Parse(stamp, parts[3])
			f.First, faults[2] = strconv.ParseInt(parts[4], 10, 64)
			f.Last, faults[3] = strconv.ParseInt(parts[5], 10, 64)
			f.Count, faults[4] = strconv.ParseInt(parts[6], 10, 64)
			if errors.Join(faults[:]...) != nil {
				continue
			}
		} else {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		f.Bytes, f.finished = info.Size(), info.ModTime()
		files = append(files, f)
	}
	return files, nil
}

// Files lists the files of the archive in a directory, in the order in which they were begun. It reads those that are
// open, to know their ranges. Other files in the directory are left out.
//
// A compressed file is named after its beginning and its range:
//
//	20260501T120000.123456789Z_20260501T120000Z-20260501T130000Z_1001-2000_998.jsonl.gz
//
// These are the time when it was begun, the times when its oldest and newest messages were created, the lowest and
// highest position, and the number of messages. An open file has the first of these times alone, and ends in .jsonl.
func Files(dir string) ([]ArchiveFile, error) {
	listed, err := list(dir)
	if err != nil {
		return nil, fmt.Errorf("jsonl: archive %s: %w", dir, plain(err))
	}
	compressed := make(map[string]bool)
	for _, f := range listed {
		if !f.Open {
			compressed[f.start] = true
		}
	}
	var files []ArchiveFile
	for _, f := range listed {
		if f.Open {
			if compressed[f.start] {
				continue
			}
			switch err := f.note(io.Discard); {
			case errors.Is(err, fs.ErrNotExist): // it has been compressed since
				return Files(dir)
			case err != nil:
				return nil, fmt.Errorf("jsonl: read %s: %w", f.Path, plain(err))
			case f.Count == 0:
				continue
			}
		}
		files = append(files, f)
	}
	return files, nil
}

// Lines reads the file's lines in the order in which they were written. It ends with the first error. A file that has
// been compressed since it was listed is read all the same.
func (f ArchiveFile) Lines() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		in, err := os.Open(f.Path)
		if f.Open && errors.Is(err, fs.ErrNotExist) {
			found, _ := filepath.Glob(filepath.Join(filepath.Dir(f.Path), f.start+"_*.jsonl.gz")) // the pattern is valid
			if len(found) > 0 {
				f.Path, f.Open = found[0], false
				in, err = os.Open(f.Path)
			}
		}
		if err != nil {
			yield(nil, err)
			return
		}
		defer in.Close()
		var text io.Reader = in
		if !f.Open {
			if text, err = gzip.NewReader(bufio.NewReader(in)); err != nil {
				yield(nil, err)
				return
			}
		}
		for lines := bufio.NewReaderSize(text, 64<<10); ; {
			line, err := lines.ReadBytes('\n')
			if err == io.EOF && (len(line) == 0 || f.Open) {
				return // what is behind the last line break of an open file is on its way, or torn
			}
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			if !yield(line, err) || err != nil {
				return
			}
		}
	}
}

// Messages reads the file's messages in the order in which they were written. It ends with the first error.
func (f ArchiveFile) Messages() iter.Seq2[*outbox.Message, error] {
	return func(yield func(*outbox.Message, error) bool) {
		n := 0
		for line, err := range f.Lines() {
			var m *outbox.Message
			if n++; err == nil {
				m, err = Decode(line)
			}
			if err != nil {
				err = fmt.Errorf("%s: line %d: %w", f.Path, n, err)
			}
			if !yield(m, err) || err != nil {
				return
			}
		}
	}
}

// note copies the lines, and sets the range to theirs. Lines that aren't messages are copied, too.
func (f *ArchiveFile) note(to io.Writer) error {
	f.Count = 0
	ranged := false
	for line, err := range f.Lines() {
		if err != nil {
			return err
		}
		if _, err := to.Write(line); err != nil {
			return err
		}
		f.Count++
		var m struct {
			Position  int64     `json:"position"`
			CreatedAt time.Time `json:"created_at"`
		}
		if json.Unmarshal(line, &m) != nil {
			continue
		}
		at := m.CreatedAt.UTC().Truncate(time.Second)
		if !ranged {
			f.Oldest, f.Newest, f.First, f.Last, ranged = at, at, m.Position, m.Position, true
		}
		f.First, f.Last = min(f.First, m.Position), max(f.Last, m.Position)
		if at.Before(f.Oldest) {
			f.Oldest = at
		}
		if at.After(f.Newest) {
			f.Newest = at
		}
	}
	return nil
}
