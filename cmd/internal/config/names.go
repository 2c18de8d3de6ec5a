package config

import (
	"os"
	"regexp"
	"strings"
)

const (
	maxName    = 63
	nameRule   = "use 1 to 63 of a-z, 0-9, - and _, with a letter or digit first"
	maxPattern = 255
)

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)

// DefaultName makes a name of a hostname; "" is that of this host.
func DefaultName(hostname string) string {
	if hostname == "" {
		hostname, _ = os.Hostname()
	}
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		}
		return '-'
	}, strings.ToLower(hostname))
	if name = strings.Trim(name, "-_"); name == "" {
		return "relay"
	}
	return name[:min(len(name), maxName)]
}
