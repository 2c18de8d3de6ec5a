package console

import (
	"time"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/rest"
)

// Options is what a console needs. API is required.
type Options struct {
	// API runs the verbs, and tells who asks: access, roles and masks are those of the API.
	API *rest.API
	// Report returns the state from memory, its age, and why it isn't newer. nil: the console reads the database every
	// few seconds, and once a second while somebody looks at it.
	Report func() (r *health.Report, age time.Duration, err error)
	// History is what the charts show. nil: an own one, which the console's reports fill.
	History *History
	// Name is that of the database, if the program delivers from several.
	Name string
	// Databases are those that the program delivers from, at least one: they get a page. nil: there is one.
	Databases func() []Database
	// Panel adds a section of forms to the overview. nil: none.
	Panel *Panel
}

// Database is one of those that the program delivers from, as it is known now.
type Database struct {
	// Name is the one in the configuration.
	Name string
	// Path leads to its console from a page of another one; "" if it has none.
	Path string
	// Report tells how things are. It was read from the database Age ago; its At is zero if nothing was read yet.
	Report *health.Report
	Age    time.Duration
	// Member is the one of a fleet that delivers from it; "" if there is no fleet, or none does.
	Member string
	// Elsewhere says that this process delivers nothing from it. Its report is then not shown.
	Elsewhere bool
}

// Panel is a section of buttons that a program adds, such as the faults of a demonstration.
type Panel struct {
	Title   string
	Buttons []Button
}

// Button is an action for everyone who may see the page.
type Button struct {
	Name, Label, Help string
	Press             func()
}
