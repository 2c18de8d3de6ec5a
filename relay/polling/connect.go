package polling

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/dial"
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

// connect opens a connection with the settings that this package's statements rely on.
func connect(ctx context.Context, base *pgx.ConnConfig, name string) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dial.AnswerWithin)
	defer cancel()
	cfg := base.Copy()
	cfg.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	hear(cfg)
	cfg.StatementCacheCapacity = max(cfg.StatementCacheCapacity, 64)
	return dial.Session(ctx, cfg, "outbox relay "+name, sessionSettings...)
}
