package http

import (
	"net/netip"
	"testing"
)

func TestOnlyPublicAddressesMayBeConnectedTo(t *testing.T) {
	t.Parallel()
	for address, allowed := range map[string]bool{
		"8.8.8.8": true, "1.1.1.1": true, "93.184.216.34": true,
		"172.15.255.255": true, "172.32.0.0": true, "100.63.255.255": true, "100.128.0.0": true,
		"2606:4700:4700::1111": true, "2a00:1450:4001:81b::200e": true,
		"::ffff:8.8.8.8":      true, // IPv4 in IPv6
		"64:ff9b::8.8.8.8":    true, // through a translator (NAT64)
		"0.0.0.0":             false,
		"10.0.0.1":            false,
		"100.64.0.1":          false,
		"100.100.100.200":     false,
		"127.0.0.1":           false,
		"127.8.8.8":           false,
		"168.63.129.16":       false,
		"169.254.169.254":     false,
		"172.16.0.1":          false,
		"172.31.255.255":      false,
		"192.0.0.192":         false,
		"192.0.2.1":           false,
		"192.88.99.1":         false,
		"192.168.1.1":         false,
		"198.18.0.1":          false,
		"198.19.255.255":      false,
		"198.51.100.1":        false,
		"203.0.113.1":         false,
		"224.0.0.1":           false,
		"239.1.1.1":           false,
		"240.0.0.1":           false,
		"255.255.255.255":     false,
		"::":                  false,
		"::1":                 false,
		"::ffff:127.0.0.1":    false,
		"::ffff:10.0.0.1":     false,
		"::ffff:a9fe:a9fe":    false, // 169.254.169.254
		"::7f00:1":            false, // IPv4-compatible
		"64:ff9b::127.0.0.1":  false,
		"64:ff9b::a9fe:a9fe":  false,
		"64:ff9b:1::8.8.8.8":  false, // a translator of one's own
		"100::1":              false,
		"2001::1":             false, // Teredo
		"2001:db8::1":         false,
		"2002:7f00:1::":       false, // 6to4
		"3fff::1":             false,
		"5f00::1":             false,
		"fc00::1":             false,
		"fd00:ec2::254":       false,
		"fe80::1":             false,
		"fe80::1%eth0":        false,
		"fec0::1":             false,
		"ff02::1":             false,
		"2606:4700::1%lo":     true,
		"::ffff:0:127.0.0.1":  false,
		"::ffff:192.168.0.10": false,
	} {
		err := guard{}.check(netip.MustParseAddr(address))
		if (err == nil) != allowed {
			t.Errorf("%s: %v", address, err)
		}
	}
	internal := guard{[]netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/8")}}
	for address, allowed := range map[string]bool{"10.1.2.3": true,
		"::ffff:10.1.2.3": true, "10.2.0.1": false, "fd00::1": true, "127.0.0.1": false} {
		if err := internal.check(netip.MustParseAddr(address)); (err == nil) != allowed {
			t.Errorf("%s: %v", address, err)
		}
	}
}
