package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/cmd/internal/session"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/schema"
)

// result is what became of one of several databases.
type result string

const (
	applied result = "applied" // this run has applied migrations
	pending result = "pending" // a dry run would
	current result = "current" // it had them
	failed  result = "failed"
	left    result = "left" // the run was interrupted before
)

// outcome is that of one of several databases.
type outcome struct {
	Name       string   `json:"name"`
	Result     result   `json:"result"`
	Migrations []string `json:"migrations,omitempty"` // that were applied, or would be
	Cause      string   `json:"cause,omitempty"`
}

// summary is the outcome of all.
type summary struct {
	Version   int       `json:"version"` // that this program brings databases to
	Applied   int       `json:"applied"`
	Pending   int       `json:"pending"`
	Current   int       `json:"current"`
	Failed    int       `json:"failed"`
	Left      int       `json:"left"`
	Databases []outcome `json:"databases"`
}

// upAll brings all databases to this program's version. One that fails stops none of the others, and a second run finds
// what is left, because a migration is either applied or not.
func upAll(ctx context.Context, s *session.Session, cfg schema.UpConfig, user string, parallel int, out output.Format) error {
	all, err := s.All(ctx)
	if err != nil {
		return err
	}
	p := &progress{to: s.Streams, out: out, all: len(all), terminal: out == output.AsTable && output.IsTerminal(s.Stderr)}
	sum := summary{Version: schema.Latest(), Databases: make([]outcome, len(all))}
	for i, at := range all {
		sum.Databases[i] = outcome{Name: cmp.Or(at.Name, config.DefaultDatabase), Result: left}
	}
	session.Each(ctx, len(all), parallel, func(i int) {
		sum.Databases[i] = upOne(ctx, s, all[i], cfg, user)
		p.add(sum.Databases[i])
	})
	p.end()
	sum.count()
	if out == output.AsJSON {
		err = output.JSON(s.Stdout, sum)
	} else {
		_, err = fmt.Fprintln(s.Stdout, sum)
	}
	return errors.Join(err, sum.err())
}

func upOne(ctx context.Context, s *session.Session, at session.Address, cfg schema.UpConfig, user string) outcome {
	o := outcome{Name: cmp.Or(at.Name, config.DefaultDatabase), Result: current}
	at, err := as(at, user)
	var conn *pgx.Conn
	if err == nil {
		conn, err = s.Open(ctx, at)
	}
	if err == nil {
		defer connect.Close(conn)
		var found []schema.Migration
		found, err = schema.Up(ctx, conn, cfg)
		for _, m := range found {
			o.Migrations = append(o.Migrations, m.String())
		}
	}
	switch {
	case err != nil && ctx.Err() != nil:
		o.Result = left
	case err != nil:
		o.Result, o.Cause = failed, s.Redact(err.Error())
	case len(o.Migrations) > 0 && cfg.DryRun:
		o.Result = pending
	case len(o.Migrations) > 0:
		o.Result = applied
	}
	return o
}

// as is the address with another user, whose password is that of PGPASSWORD or the password file.
func as(at session.Address, user string) (session.Address, error) {
	if user == "" {
		return at, nil
	}
	if !strings.Contains(at.URL, "://") {
		quoted := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(user)
		at.URL += " user='" + quoted + "' password=''"
		return at, nil
	}
	u, err := url.Parse(at.URL)
	if err != nil { // its text may have a piece of a password
		return at, exit.With(exit.Config, fmt.Errorf("%s can't be used as the address of a database", at.Origin))
	}
	q := u.Query()
	q.Del("user")
	q.Del("password")
	u.User, u.RawQuery = url.User(user), q.Encode()
	at.URL = u.String()
	return at, nil
}

func (s *summary) count() {
	for _, o := range s.Databases {
		switch o.Result {
		case applied:
			s.Applied++
		case pending:
			s.Pending++
		case current:
			s.Current++
		case failed:
			s.Failed++
		default:
			s.Left++
		}
	}
}

// String is the summary as a line.
func (s summary) String() string {
	var parts []string
	for _, p := range []struct {
		n    int
		text string
	}{{s.Applied, fmt.Sprintf("brought to version %d", s.Version)}, {s.Pending, fmt.Sprintf("would be brought to version %d", s.Version)},
		{s.Current, "had it already"}, {s.Failed, "failed"}, {s.Left, "not begun or interrupted"}} {
		if p.n > 0 {
			parts = append(parts, printed.Number(p.n)+" "+p.text)
		}
	}
	return printed.Many(len(s.Databases), "database", "databases") + ": " + strings.Join(parts, ", ")
}

// err names the databases that are not as they should be, nil if there are none.
func (s summary) err() error {
	var names []string
	for _, o := range s.Databases {
		if o.Result == failed || o.Result == left {
			names = append(names, o.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("%s of %s: not migrated: %s: run it again when the causes are gone; it does what is left", printed.Number(len(names)),
		printed.Many(len(s.Databases), "database", "databases"), session.Some(names))
}

// progress tells of the databases as they come: a line for each that something was done to, and on a terminal how many
// are done.
type progress struct {
	to       output.Streams
	out      output.Format
	terminal bool
	all      int

	mu        sync.Mutex
	done, bad int
}

func (p *progress) add(o outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
	text := ""
	switch o.Result {
	case applied:
		text = "applied " + strings.Join(o.Migrations, ", ")
	case pending:
		text = "would apply " + strings.Join(o.Migrations, ", ")
	case failed:
		text = "failed: " + o.Cause
		p.bad++
	}
	p.erase()
	if text != "" && p.out == output.AsTable {
		fmt.Fprintf(p.to.Stdout, "%s: %s\n", output.Clean(o.Name), output.Clean(text))
	}
	if p.terminal {
		fmt.Fprintf(p.to.Stderr, "%s of %s, %s failed", printed.Number(p.done), printed.Many(p.all, "database", "databases"),
			printed.Number(p.bad))
	}
}

func (p *progress) erase() {
	if p.terminal {
		fmt.Fprint(p.to.Stderr, "\r\x1b[K")
	}
}

func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
}

// version is that of one of several databases.
type version struct {
	Name    string `json:"name"`
	Version int    `json:"version"`
	Pending int    `json:"pending"`
	Newer   bool   `json:"newer,omitempty"`   // than this program works with
	Missing bool   `json:"missing,omitempty"` // the schema
	Cause   string `json:"cause,omitempty"`   // why the version could not be read
}

// versions are those of all, and how many databases have each with which this program works.
type versions struct {
	Latest    int         `json:"latest"`
	Counts    map[int]int `json:"versions"`
	Newer     int         `json:"newer"`
	Unread    int         `json:"unread"`
	Databases []version   `json:"databases"`
}

// statusAll shows the versions of all databases: as text those alone that are not at this program's.
func statusAll(ctx context.Context, s *session.Session, parallel int, out output.Format, strict bool) error {
	all, err := s.All(ctx)
	if err != nil {
		return err
	}
	found := versions{Latest: schema.Latest(), Counts: map[int]int{}, Databases: make([]version, len(all))}
	session.Each(ctx, len(all), parallel, func(i int) { found.Databases[i] = versionOf(ctx, s, all[i]) })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var unread, behind []string
	for _, v := range found.Databases {
		switch {
		case v.Cause != "":
			unread = append(unread, v.Name)
			continue
		case v.Newer:
			found.Newer++
			continue
		case v.Pending > 0 || v.Missing:
			behind = append(behind, v.Name)
		}
		found.Counts[v.Version]++
	}
	found.Unread = len(unread)
	if err := found.print(s.Streams, out); err != nil {
		return err
	}
	if strict && len(behind) > 0 {
		return fmt.Errorf("%w: %s: run: outbox migrate up --all", schema.ErrOutdated, session.Some(behind))
	}
	if len(unread) > 0 {
		return fmt.Errorf("%s of %s: could not be read: %s", printed.Number(len(unread)), printed.Many(len(all), "database", "databases"),
			session.Some(unread))
	}
	return nil
}

func versionOf(ctx context.Context, s *session.Session, at session.Address) version {
	v := version{Name: cmp.Or(at.Name, config.DefaultDatabase)}
	conn, err := s.Open(ctx, at)
	if err == nil {
		defer connect.Close(conn)
		var state schema.State
		state, err = schema.Status(ctx, conn)
		v.Version, v.Pending, v.Newer, v.Missing = state.Version, len(state.Pending), state.TooNew(), state.Version == 0
	}
	if err != nil {
		v = version{Name: v.Name, Cause: s.Redact(err.Error())}
	}
	return v
}

func (f versions) print(to output.Streams, out output.Format) error {
	switch out {
	case output.AsJSON:
		return output.JSON(to.Stdout, f)
	case output.AsJSONL:
		return output.JSONL(to.Stdout, f.Databases)
	}
	var parts []string
	part := func(n int, text string) {
		if n > 0 {
			parts = append(parts, printed.Number(n)+" "+text)
		}
	}
	part(f.Newer, "with a newer one than this program works with")
	for v := f.Latest + 1; v > 0; v-- {
		part(f.Counts[v], fmt.Sprint("with version ", v))
	}
	part(f.Counts[0], "without the schema")
	part(f.Unread, "that could not be read")
	fmt.Fprintf(to.Stdout, "%s, and version %d is this program's: %s\n", printed.Many(len(f.Databases), "database", "databases"), f.Latest,
		strings.Join(parts, ", "))
	t := output.NewTable(to.Stdout, "DATABASE", "VERSION", "STATE")
	rows := 0
	for _, v := range f.Databases {
		state := ""
		switch {
		case v.Cause != "":
			state = v.Cause
		case v.Newer:
			state = "newer than this program works with: use a newer program"
		case v.Missing:
			state = "the schema is missing"
		case v.Pending > 0:
			state = printed.Many(v.Pending, "migration is pending", "migrations are pending")
		case v.Version > f.Latest:
			state = "the next program's, with which this one works"
		default:
			continue
		}
		t.Row(v.Name, v.Version, state)
		rows++
	}
	if rows == 0 {
		return nil
	}
	fmt.Fprintln(to.Stdout)
	return t.Flush()
}
