package connect

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var keywords = regexp.MustCompile(`^\s*\w+\s*=`)

// Complaint says what is wrong with the address of a database, a URL or keywords, and "" if nothing is. It repeats
// nothing but names of parameters: any other part may be one of a password.
func Complaint(text string) string {
	if strings.HasPrefix(text, "jdbc:") {
		return "it begins with jdbc:, which is Java's form: write postgres://user:password@host:5432/database"
	}
	scheme, rest, isURL := strings.Cut(text, "://")
	if !isURL && !keywords.MatchString(text) {
		return "neither a URL such as postgres://user@host:5432/database nor keywords such as host=... dbname=..."
	}
	if isURL && !keywords.MatchString(text) {
		if scheme != "postgres" && scheme != "postgresql" {
			return "the URL doesn't begin with postgres:// or postgresql://"
		}
		if complaint := cmp.Or(Unencoded(text), parts(scheme, rest)); complaint != "" {
			return complaint
		}
		if _, query, found := strings.Cut(rest, "?"); found {
			values, _ := url.ParseQuery(query) // it was parsed before
			if complaint := foreign(slices.Sorted(maps.Keys(values)), "the URL"); complaint != "" {
				return complaint
			}
		}
	}
	cfg, err := pgx.ParseConfig(text)
	if err != nil {
		return refused(err)
	}
	return foreign(slices.Sorted(maps.Keys(cfg.RuntimeParams)), "the address")
}

const encode = "special characters in a user name or password must be percent-encoded, such as %40 for @ and %2F for /"

// parts looks at the URL with each of its hosts, of which url.Parse knows one.
func parts(scheme, rest string) string {
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	user, hosts := "", authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, hosts = authority[:i+1], authority[i+1:]
	}
	for host := range strings.SplitSeq(hosts, ",") {
		if _, err := url.Parse(scheme + "://" + user + host + tail); err != nil {
			return "not a valid URL; " + encode
		}
	}
	return ""
}

// Unencoded says which character of a URL's user or password has to be encoded, and "" if none is seen. Such a URL has
// another host than is meant, namely a part of the password, which would be printed as soon as it isn't found.
func Unencoded(text string) string {
	scheme, rest, isURL := strings.Cut(text, "://")
	if !isURL {
		return ""
	}
	end := len(rest)
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		end = i
	}
	authority, tail := rest[:end], rest[end:]
	cut := func(character byte) string {
		return fmt.Sprintf("the character %c stands in the user or password: in a URL it has to be percent-encoded, as %%%02X",
			character, character)
	}
	if strings.Count(authority, "@") > 1 {
		return cut('@')
	}
	login := strings.Contains(authority, ":") && !strings.Contains(authority, "@") && !port.MatchString(authority)
	switch {
	case !strings.Contains(tail, "@"):
		return ""
	case tail[0] == '#', login:
		return cut(tail[0])
	case strings.Contains(tail, "#") && strings.Contains(authority, "@") && !strings.HasPrefix(scheme, "http"):
		return cut('#')
	case tail[0] == '/' && strings.Contains(authority, "@") && strings.HasPrefix(scheme, "postgres") && !strings.Contains(tail, "?"):
		return cut('@') // a database's name has none
	}
	return ""
}

// port ends the hosts of a URL without a user.
var port = regexp.MustCompile(`:[0-9]*$|\]$`)

// strangers are parameters that other programs read in a database's URL, with who does and what to write instead.
var strangers = map[string]string{
	"gssencmode": "libpq's", "gssdelegation": "libpq's", "sslcompression": "libpq's", "sslcrl": "libpq's", "sslcrldir": "libpq's",
	"requiressl": "libpq's; sslmode=require", "requirepeer": "libpq's", "keepalives": "libpq's", "keepalives_idle": "libpq's",
	"keepalives_interval": "libpq's", "keepalives_count": "libpq's", "tcp_user_timeout": "libpq's", "load_balance_hosts": "libpq's",
	"hostaddr": "libpq's; the host may be an address", "fallback_application_name": "libpq's; application_name",
	"replication": "the relay's own choice",

	"pgbouncer": "Prisma's", "connection_limit": "Prisma's", "pool_timeout": "Prisma's", "socket_timeout": "Prisma's",
	"statement_cache_size": "Prisma's", "sslidentity": "Prisma's", "sslaccept": "Prisma's",
	"schema": "Prisma's; options=-csearch_path%3DNAME",

	"ssl": "JDBC's; sslmode=require", "sslfactory": "JDBC's", "currentSchema": "JDBC's; options=-csearch_path%3DNAME",
	"ApplicationName": "JDBC's; application_name", "prepareThreshold": "JDBC's", "loginTimeout": "JDBC's; connect_timeout",
	"connectTimeout": "JDBC's; connect_timeout", "socketTimeout": "JDBC's", "tcpKeepAlive": "JDBC's", "stringtype": "JDBC's",
	"reWriteBatchedInserts": "JDBC's", "targetServerType": "JDBC's; target_session_attrs", "binaryTransfer": "JDBC's",

	"prepared_statements": "Rails'", "pool": "Rails'", "encoding": "Rails'", "reconnect": "Rails'", "timeout": "Rails'; connect_timeout",
	"uselibpqcompat": "node-postgres's", "supa": "Supabase's", "sslConnection": "a framework's", "pool_max_conns": "pgxpool's",
	"pool_min_conns": "pgxpool's",
}

// foreign names the parameters that neither the relay nor PostgreSQL has. The server would refuse the connection for
// them, without saying where they stand.
func foreign(names []string, place string) string {
	var found []string
	for _, name := range names {
		if who := strangers[name]; who != "" {
			found = append(found, fmt.Sprintf("%s (%s)", name, who))
		}
	}
	if len(found) == 0 {
		return ""
	}
	return fmt.Sprintf("%s has a parameter that neither the relay nor PostgreSQL knows; take it out, or write what stands for it: %s",
		place, strings.Join(found, ", "))
}

// refused is why pgx can't read an address. What it quotes may be a part of a password, but for values of a few
// parameters.
func refused(err error) string {
	var parse *pgconn.ParseConfigError
	if errors.As(err, &parse) {
		parse.ConnString = ""
	}
	text := strings.TrimPrefix(err.Error(), "cannot parse ``: ")
	switch {
	case strings.Contains(text, "sslmode is invalid"):
		return "sslmode is none of disable, allow, prefer, require, verify-ca and verify-full"
	case strings.HasPrefix(text, "failed to parse as keyword"):
		return `not keywords such as host=... dbname=...; a value with a space or a quote stands in single quotes, with \' for a quote`
	case strings.HasPrefix(text, "failed to parse as URL"):
		return "not a valid URL; " + encode
	case strings.HasPrefix(text, "invalid port"):
		return "the port is no number from 1 to 65535; " + encode
	}
	return text
}
