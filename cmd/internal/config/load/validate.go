package load

import (
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/internal/value"
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
	bounds := value.BoundsOf(s.Field.Tag)
	if s.Value.Type() == value.DurationType && bounds.Min == "" {
		l.Check(s.Value.Int() > 0, s.Path, "%s is not a positive duration", duration(time.Duration(s.Value.Int())))
	}
	err := bounds.Check(s.Value)
	l.Check(err == nil, s.Path, "%v", err)
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
