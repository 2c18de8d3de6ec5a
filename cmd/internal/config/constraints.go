package config

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/connect"
)

func (l *loader) validate(c *Config) {
	walk(l.config, "", l.constraints)
	walk(l.config, "", func(s setting) {
		if a, ok := s.value.Addr().Interface().(interface{ Advise(*report, string) }); ok {
			a.Advise(l.report, s.path)
		}
	})
	c.check(l.report, l.unopened)
}

// constraints checks what the tags of a field demand.
func (l *loader) constraints(s setting) {
	tag := s.field.Tag
	if enum, found := tag.Lookup("enum"); found {
		allowed, given := strings.Split(enum, ","), s.value.String()
		hint := ""
		if near, found := nearest(given, allowed); found {
			hint = fmt.Sprintf("; did you mean %q?", near)
		}
		l.check(slices.Contains(allowed, given), s.path, "%q is not one of %s%s", given, strings.Join(allowed, ", "), hint)
	}
	if _, bounded := tag.Lookup("min"); s.value.Type() == durationType && !bounded {
		l.check(s.value.Int() > 0, s.path, "%s is not a positive duration", duration(time.Duration(s.value.Int())))
	}
	if least, found := limit(tag, "min"); found {
		l.check(s.value.Int() >= least, s.path, "%v is too small; the least is %d", s.value.Interface(), least)
	}
	if most, found := limit(tag, "max"); found {
		l.check(s.value.Int() <= most, s.path, "%v is too large; the most is %d", s.value.Interface(), most)
	}
	l.meant(s)
	l.login(s)
}

// login reports a broker's address whose user or password has to be encoded, or that has them where none can be. It
// repeats nothing of it.
func (l *loader) login(s setting) {
	if !isText(s.value.Type()) || !strings.Contains(s.path, ".broker.") {
		return
	}
	text := textOf(s.value)
	switch {
	case s.value.Type() == urlType || strings.HasSuffix(s.path, "url") || strings.HasSuffix(s.path, "endpoint"):
		for _, one := range splitURLs(text) {
			complaint := connect.Unencoded(one)
			l.check(complaint == "", s.path, "%s", complaint)
		}
	case hostPort.MatchString(s.path) && strings.ContainsAny(text, "@"):
		l.check(false, s.path, "a user and a password can't stand in it; write host:port, and the others as settings beside it")
	}
}

var hostPort = regexp.MustCompile(`\.(brokers|addresses)\[\d+\]$`)

// meant reports a zero that a broker's adapter would take for its default.
func (l *loader) meant(s setting) {
	if s.parent.IsValid() && isScalar(s.value.Type()) && s.value.Kind() != reflect.Bool && s.value.IsZero() &&
		strings.Contains(s.path, ".broker.") {
		byDefault := newDefault(s.parent.Type()).FieldByIndex(s.field.Index)
		l.check(byDefault.IsZero(), s.path, "%s would mean the default, %s: leave it out, or give another",
			written(s.value), written(byDefault))
	}
}

func limit(tag reflect.StructTag, name string) (int64, bool) {
	n, err := strconv.ParseInt(tag.Get(name), 10, 64)
	return n, err == nil
}
