package discover

import (
	"context"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/mapping"
)

// query finds the databases that the rows of a query name.
type query struct {
	cfg    config.DatabaseQuery
	open   Open
	origin string
}

func (q *query) look(ctx context.Context, _ map[string]bool) (items []item, err error) {
	parts, err := mapping.ParseTemplate(q.cfg.DatabaseURL.Text())
	if err != nil {
		return nil, fmt.Errorf("database_url is no template") // err has its text
	}
	conn, err := q.open(ctx, q.cfg.URL.Text(), q.origin)
	if err != nil {
		return nil, err
	}
	defer connect.Close(conn)
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, fmt.Errorf("begin the query: %w", err)
	}
	defer tx.Rollback(ctx)
	rows, err := tx.Query(ctx, q.cfg.SQL, pgx.QueryExecModeSimpleProtocol) // so values of any type come as text
	if err != nil {
		return nil, fmt.Errorf("run the query: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		row, columns := make(map[string]string), rows.FieldDescriptions()
		for i, raw := range rows.RawValues() {
			if raw != nil {
				row[columns[i].Name] = string(raw)
			}
		}
		it := item{name: row["name"]}
		if it.found.URL, err = address(parts, row); err != nil {
			it.fault = err.Error()
		}
		items = append(items, it)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("run the query: %w", err)
	}
	var columns []string
	for _, f := range rows.FieldDescriptions() {
		columns = append(columns, f.Name)
	}
	if err := missing(columns, parts); err != nil {
		return nil, err
	}
	return items, nil
}

// missing reports the columns that the query must have and doesn't.
func missing(columns []string, parts []mapping.TemplatePart) error {
	if !slices.Contains(columns, "name") {
		return fmt.Errorf("the query has no column name; it has %s: write SELECT ... AS name", strings.Join(columns, ", "))
	}
	for _, p := range parts {
		if p.Column != "" && !slices.Contains(columns, p.Column) {
			return fmt.Errorf("database_url has {%s}, and the query has no such column; it has %s", p.Column, strings.Join(columns, ", "))
		}
	}
	return nil
}

// hosts are the characters of a list of hosts with their ports.
var hosts = regexp.MustCompile(`^[A-Za-z0-9._:,\[\]-]+$`)

// address makes the address of a database of the values of a row. Each value is encoded as its place asks, so that it
// can't be more than a value. A template that is one column has the whole address. Errors don't repeat values.
func address(parts []mapping.TemplatePart, row map[string]string) (string, error) {
	var b strings.Builder
	for i, p := range parts {
		if p.Column == "" {
			b.WriteString(p.Text)
			continue
		}
		value, given := row[p.Column]
		if !given || value == "" {
			return "", fmt.Errorf("its column %s is empty", p.Column)
		}
		if i == 0 {
			b.WriteString(value)
			continue
		}
		before, after := literals(parts[:i]), literals(parts[i+1:])
		_, inside, isURL := strings.Cut(before, "://")
		switch {
		case !isURL && parts[0].Column == "" && strings.Count(before, "'")%2 == 1: // within quotes
			b.WriteString(escaped(value))
		case !isURL && parts[0].Column == "":
			b.WriteString(quoted(value))
		case !isURL, strings.ContainsAny(inside, "/?"), strings.Contains(authority(after), "@"):
			b.WriteString(strings.ReplaceAll(url.QueryEscape(value), "+", "%20"))
		case !hosts.MatchString(value):
			return "", fmt.Errorf("its column %s is no host", p.Column)
		default:
			b.WriteString(value)
		}
	}
	return b.String(), nil
}

// literals is the text of a template without its columns.
func literals(parts []mapping.TemplatePart) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text)
	}
	return b.String()
}

// authority is what stands before the path of a URL.
func authority(text string) string {
	if i := strings.IndexAny(text, "/?"); i >= 0 {
		return text[:i]
	}
	return text
}
