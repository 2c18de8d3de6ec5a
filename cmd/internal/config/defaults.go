package config

import (
	"reflect"
	"time"

	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/polling"
	"github.com/pgoutbox/outbox/relay/retention"
)

// A section that configures a package of the library has that package's defaults, so that there is one place for each.

// standard gives the settings of an empty file. They aren't valid: a database and a destination must be given. Name is
// set by [Load], from the host's name.
func (c *Config) standard() {
	c.Log = Log{Level: "info", Format: "auto"}
	c.HTTP = HTTP{Listen: "127.0.0.1:9187", API: true, MaskHeaders: rest.CredentialHeaders()}
	c.Retention = Retention{Enabled: true, Interval: retention.Defaults().Interval}
}

// standard gives what a destination has unless told otherwise.
func (d *Destination) standard() {
	engine, table := relay.Defaults(), polling.Defaults()
	adopt(&d.Delivery, engine)
	d.DrainTimeout, d.ShardGroups, d.Lease, d.LagObjective = engine.DrainTimeout, table.Groups, table.Lease, table.LagObjective
	d.Poll = Poll{Busy: table.PollBusy, Idle: table.PollIdle}
}

// patience gives a destination that is a service of the user's own, whose answer to an outage of its own is an error
// for each message, what webhooks usually have: about two hours of attempts, and an outage as soon as several messages
// have failed and none was accepted.
func (l *loader) patience(d *Destination, path string) {
	if d.Broker.Webhook == nil && d.Broker.GRPC == nil {
		return
	}
	path += ".delivery."
	given := func(key string) bool { _, given := l.origins[path+key]; return given }
	if !given("max_attempts") {
		d.Delivery.MaxAttempts = 40
	}
	if !given("backoff.max") {
		d.Delivery.Backoff.Max = max(5*time.Minute, d.Delivery.Backoff.Initial)
	}
	if !given("outage.after") {
		d.Delivery.Outage.After = 5
	}
}

// Standard returns a section of the type T with its defaults.
func Standard[T any]() T { return newDefault(reflect.TypeFor[T]()).Interface().(T) }

// newDefault returns a value of a type, with its defaults, that can be set.
func newDefault(t reflect.Type) reflect.Value {
	v := reflect.New(t)
	if s, ok := v.Interface().(interface{ standard() }); ok {
		s.standard()
	}
	return v.Elem()
}

// adopt gives the scalars of a section the values that the fields of the same names have in library.
func adopt(section, library any) {
	adoptValue(reflect.ValueOf(section).Elem(), reflect.ValueOf(library))
}

func adoptValue(section, library reflect.Value) {
	for field, v := range section.Fields() {
		theirs := library.FieldByName(nameOf(field))
		switch {
		case !theirs.IsValid():
		case isScalar(v.Type()) && theirs.CanConvert(v.Type()) && (v.Kind() == reflect.String) == (theirs.Kind() == reflect.String):
			v.Set(theirs.Convert(v.Type()))
		case v.Kind() == reflect.Struct && theirs.Kind() == reflect.Struct && !isSecret(v.Type()):
			adoptValue(v, theirs)
		}
	}
}

// nameOf is the name that a setting has in what the section configures.
func nameOf(f reflect.StructField) string {
	if name := f.Tag.Get("field"); name != "" {
		return name
	}
	return f.Name
}
