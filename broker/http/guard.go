package http

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"syscall"
	"time"
)

// guard decides which addresses may be connected to: public ones, and those of the allowed networks. It checks the
// resolved address at the moment of connecting, so earlier answers of the name's resolution don't matter.
type guard struct{ allowed []netip.Prefix }

// special are the IPv4 networks that are not, or not entirely, part of the internet (IANA's registry of special-purpose
// addresses), and the one public address at which a cloud serves its own machines.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),        // this network
	netip.MustParsePrefix("10.0.0.0/8"),       // private
	netip.MustParsePrefix("100.64.0.0/10"),    // shared by carriers; some clouds' metadata
	netip.MustParsePrefix("127.0.0.0/8"),      // loopback
	netip.MustParsePrefix("168.63.129.16/32"), // Azure's platform
	netip.MustParsePrefix("169.254.0.0/16"),   // link-local; most clouds' metadata
	netip.MustParsePrefix("172.16.0.0/12"),    // private
	netip.MustParsePrefix("192.0.0.0/24"),     // protocol assignments
	netip.MustParsePrefix("192.0.2.0/24"),     // documentation
	netip.MustParsePrefix("192.88.99.0/24"),   // 6to4 relays
	netip.MustParsePrefix("192.168.0.0/16"),   // private
	netip.MustParsePrefix("198.18.0.0/15"),    // benchmarks
	netip.MustParsePrefix("198.51.100.0/24"),  // documentation
	netip.MustParsePrefix("203.0.113.0/24"),   // documentation
	netip.MustParsePrefix("224.0.0.0/3"),      // multicast, reserved, broadcast
}

// In IPv6 only global unicast is public, without its special parts. An address that carries an IPv4 address through a
// translator is judged by that IPv4 address.
var (
	globalUnicast = netip.MustParsePrefix("2000::/3")
	translated    = netip.MustParsePrefix("64:ff9b::/96")
	special6      = []netip.Prefix{
		netip.MustParsePrefix("2001::/23"),     // protocol assignments, Teredo
		netip.MustParsePrefix("2001:db8::/32"), // documentation
		netip.MustParsePrefix("2002::/16"),     // 6to4
		netip.MustParsePrefix("3fff::/20"),     // documentation
	}
)

// check returns nil if ip may be connected to.
func (g guard) check(ip netip.Addr) error {
	plain := ip.Unmap().WithZone("")
	if contains(g.allowed, plain) || public(plain) {
		return nil
	}
	return fmt.Errorf("http: connecting to %s is not allowed: it is not a public address; if the receiver belongs "+
		"there, allow its network (AllowNetworks, allow_networks)", ip)
}

func public(ip netip.Addr) bool {
	if ip.Is4() {
		return !contains(special, ip)
	}
	if translated.Contains(ip) {
		b := ip.As16()
		return !contains(special, netip.AddrFrom4([4]byte(b[12:])))
	}
	return globalUnicast.Contains(ip) && !contains(special6, ip)
}

func contains(networks []netip.Prefix, ip netip.Addr) bool {
	for _, network := range networks {
		if network.Contains(ip) {
			return true
		}
	}
	return false
}

// control is called by the dialer with the address that it is about to connect to.
func (g guard) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("http: connecting to %q is not allowed: not an IP address", address)
	}
	return g.check(at.Addr())
}

// dialer connects to receivers through the guard, and to a proxy without it.
func (g guard) dialer(cfg *Config, proxy *url.URL) func(context.Context, string, string) (net.Conn, error) {
	plain := &net.Dialer{Timeout: cfg.ConnectTimeout, KeepAlive: 15 * time.Second, Resolver: cfg.Resolver}
	guarded := *plain
	guarded.ControlContext = g.control
	if proxy == nil {
		return guarded.DialContext
	}
	// All connections go to the proxy.
	return plain.DialContext
}
