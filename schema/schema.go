// Package schema installs, checks and describes the tables of the outbox: the schema "outbox" of a
// PostgreSQL database, version 14 or later.
//
// [Up] brings a database to the version that this package knows, [SQL] prints the same for people who
// apply changes by hand, [Grants] prints the least privileges of each role, and [Check] tells a relay
// at its start whether it can work.
package schema

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// What can be wrong with a database. Functions of this package wrap these with the details and the next
// step; use errors.Is.
var (
	ErrMissing           = errors.New("the outbox schema is missing")
	ErrOutdated          = errors.New("the outbox schema is too old")
	ErrTooNew            = errors.New("the outbox schema is too new")
	ErrChanged           = errors.New("the outbox schema was made by a changed migration")
	ErrForbidden         = errors.New("the database role lacks privileges")
	ErrUnsupportedServer = errors.New("the PostgreSQL server is not supported")
)

// MinServerVersion is the oldest PostgreSQL that the outbox works on, as server_version_num has it.
const MinServerVersion = 140000

// Querier runs queries: a *pgx.Conn, a *pgxpool.Pool or a pgx.Tx.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Migration is one numbered step. Versions are 1, 2, 3 and so on, without gaps.
type Migration struct {
	Version  int
	Name     string
	SQL      string
	Checksum string // SHA-256 of SQL in hexadecimal
}

func (m Migration) String() string { return fmt.Sprintf("%04d_%s", m.Version, m.Name) }

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns every migration that this package knows, in order.
func Migrations() []Migration {
	migrations, err := load(files)
	if err != nil {
		panic(err) // the files are part of the program: a test reads them
	}
	return migrations
}

// Latest is the version that Up leads to.
func Latest() int { return len(Migrations()) }

// load reads migrations/NNNN_name.sql; fs.Glob sorts by name and so by number.
func load(from fs.FS) ([]Migration, error) {
	paths, err := fs.Glob(from, "migrations/*.sql")
	if err != nil {
		return nil, err
	}
	migrations := make([]Migration, 0, len(paths))
	for i, path := range paths {
		number, name, ok := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(path, "migrations/"), ".sql"), "_")
		version, err := strconv.Atoi(number)
		if !ok || err != nil || version != i+1 || len(number) != 4 {
			return nil, fmt.Errorf("schema: %s: want a name like migrations/%04d_name.sql", path, i+1)
		}
		text, err := fs.ReadFile(from, path)
		if err != nil {
			return nil, err
		}
		// A checkout with CRLF must not look like another migration.
		sql := strings.ReplaceAll(string(text), "\r\n", "\n")
		if !strings.HasSuffix(strings.TrimSpace(sql), ";") {
			return nil, fmt.Errorf("schema: %s: its last statement has no semicolon", path)
		}
		sum := sha256.Sum256([]byte(sql))
		migrations = append(migrations, Migration{version, name, sql, hex.EncodeToString(sum[:])})
	}
	return migrations, nil
}
