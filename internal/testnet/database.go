package testnet

import (
	"net"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Before puts a proxy in front of a database's server for the test. It returns the database's address at the proxy.
func Before(t testing.TB, conn *pgx.ConnConfig) (*Proxy, *pgx.ConnConfig) {
	t.Helper()
	p := New(t, net.JoinHostPort(conn.Host, strconv.Itoa(int(conn.Port))))
	return p, p.Database(t, conn)
}

// Database returns the address of a database of the proxy's server at the proxy.
func (p *Proxy) Database(t testing.TB, conn *pgx.ConnConfig) *pgx.ConnConfig {
	t.Helper()
	host, port, err := net.SplitHostPort(p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	conn = conn.Copy()
	conn.Host, conn.Port, conn.Fallbacks = host, uint16(n), nil
	return conn
}
