package load

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
)

func (l *loader) validate(c *config.Config) {
	fields.Walk(l.config, "", l.constraints)
	fields.Walk(l.config, "", func(s fields.Setting) {
		if a, ok := s.Value.Addr().Interface().(findings.Adviser); ok {
			a.Advise(l.Report, s.Path)
		}
	})
	c.Check(l.Report, l.unopened)
}

// constraints checks what the tags of a field demand.
func (l *loader) constraints(s fields.Setting) {
	tag := s.Field.Tag
	if enum, found := tag.Lookup("enum"); found {
		allowed, given := strings.Split(enum, ","), s.Value.String()
		hint := ""
		if near, found := findings.Nearest(given, allowed); found {
			hint = fmt.Sprintf("; did you mean %q?", near)
		}
		l.Check(slices.Contains(allowed, given), s.Path, "%q is not one of %s%s", given, strings.Join(allowed, ", "), hint)
	}
	if _, bounded := tag.Lookup("min"); s.Value.Type() == scalar.DurationType && !bounded {
		l.Check(s.Value.Int() > 0, s.Path, "%s is not a positive duration", duration(time.Duration(s.Value.Int())))
	}
	if least, found := limit(tag, "min"); found {
		l.Check(s.Value.Int() >= least, s.Path, "%v is too small; the least is %d", s.Value.Interface(), least)
	}
	if most, found := limit(tag, "max"); found {
		l.Check(s.Value.Int() <= most, s.Path, "%v is too large; the most is %d", s.Value.Interface(), most)
	}
	l.ambiguousZeros(s)
	l.login(s)
}

// login reports a broker's address whose user or password has to be encoded, or that has them where none can be. It
// repeats nothing of it.
func (l *loader) login(s fields.Setting) {
	if !scalar.IsText(s.Value.Type()) || !strings.Contains(s.Path, ".broker.") {
		return
	}
	text := scalar.TextOf(s.Value)
	switch {
	case s.Value.Type() == scalar.URLType || strings.HasSuffix(s.Path, "url") || strings.HasSuffix(s.Path, "endpoint"):
		for _, one := range scalar.SplitURLs(text) {
			complaint := connect.Unencoded(one)
			l.Check(complaint == "", s.Path, "%s", complaint)
		}
	case hostPort.MatchString(s.Path) && strings.ContainsAny(text, "@"):
		l.Check(false, s.Path, "a user and a password can't stand in it; write host:port, and the others as settings beside it")
	}
}

var hostPort = regexp.MustCompile(`\.(brokers|addresses)\[\d+\]$`)

// ambiguousZeros reports a zero that a broker's adapter would take for its default.
func (l *loader) ambiguousZeros(s fields.Setting) {
	if s.Parent.IsValid() && scalar.Is(s.Value.Type()) && s.Value.Kind() != reflect.Bool && s.Value.IsZero() &&
		strings.Contains(s.Path, ".broker.") {
		byDefault := fields.New(s.Parent.Type()).FieldByIndex(s.Field.Index)
		l.Check(byDefault.IsZero(), s.Path, "%s would mean the default, %s: leave it out, or give another",
			written(s.Value), written(byDefault))
	}
}

func limit(tag reflect.StructTag, name string) (int64, bool) {
	n, err := strconv.ParseInt(tag.Get(name), 10, 64)
	return n, err == nil
}
