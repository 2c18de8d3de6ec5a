package lease

import (
	"context"
	"errors"
	mathrand "math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/schema"
)

// sessionSettings are the settings that this package's statements rely on besides those of package dial. Some defaults
// of a role or a database would make a reader slow, for instance a plan made while a segment was empty, or a bitmap of
// a whole backlog.
var sessionSettings = []dial.Setting{
	{Name: "search_path", Value: "pg_catalog"},
	{Name: "timezone", Value: "UTC"},
	{Name: "datestyle", Value: "ISO"},
	{Name: "intervalstyle", Value: "postgres"},
	{Name: "plan_cache_mode", Value: "force_generic_plan"},
	{Name: "work_mem", Value: "32MB"},
	{Name: "enable_seqscan", Value: "off"},
	{Name: "enable_bitmapscan", Value: "off"},
	{Name: "enable_memoize", Value: "off"},
	{Name: "enable_indexscan", Value: "on"},
	{Name: "enable_indexonlyscan", Value: "on"},
	{Name: "enable_nestloop", Value: "on"},
}

// Connect opens a connection with the settings that this package's statements rely on. name is the relay's.
func Connect(ctx context.Context, base *pgx.ConnConfig, name string) (*pgx.Conn, error) {
	return connect(ctx, base, name, dial.Session)
}

// ConnectSmall is Connect for a connection that carries little and lasts: it takes less memory.
func ConnectSmall(ctx context.Context, base *pgx.ConnConfig, name string) (*pgx.Conn, error) {
	return connect(ctx, base, name, dial.SmallSession)
}

func connect(ctx context.Context, base *pgx.ConnConfig, name string,
	session func(context.Context, *pgx.ConnConfig, string, ...dial.Setting) (*pgx.Conn, error)) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dial.AnswerWithin)
	defer cancel()
	cfg := base.Copy()
	cfg.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	cfg.StatementCacheCapacity, cfg.DescriptionCacheCapacity = 64, 0 // each takes memory for as many at once
	return session(ctx, cfg, "outbox relay "+name, sessionSettings...)
}

// Pause waits for d plus or minus a fifth, so that relays that started together don't stay in step.
func Pause(ctx context.Context, d time.Duration) error {
	return dial.Pause(ctx, time.Duration(float64(d)*(0.8+0.4*mathrand.Float64())))
}

// Refused marks an error as permanent if the database lacks something that somebody has to repair.
func Refused(err error) error {
	for _, cure := range []error{schema.ErrMissing, schema.ErrOutdated, schema.ErrTooNew, schema.ErrChanged,
		schema.ErrForbidden, schema.ErrUnsupportedServer, schema.ErrHidden, schema.ErrSegments} {
		if errors.Is(err, cure) {
			return dial.Permanent("%w", err)
		}
	}
	return err
}
