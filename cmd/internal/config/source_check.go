package config

import (
	"slices"
	"strconv"
	"strings"

	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/internal/value"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay/mapped"
)

func (d *Destination) checkSource(r *findings.Report, path string) {
	s := d.Source
	if s == nil {
		return
	}
	at := path + ".source"
	var names []string
	for _, p := range mapping.Presets() {
		names = append(names, p.Name)
	}
	hint := "; there are " + strings.Join(names, ", ")
	if near, found := value.Nearest(s.Preset, names); found {
		hint = "; did you mean " + strconv.Quote(near) + "?"
	}
	if s.Preset != "" && !slices.Contains(names, s.Preset) {
		r.Check(false, at+".preset", "%q is no preset%s", s.Preset, hint)
		r.Reject(at) // what it lacks is the preset's
		return
	}
	for i, text := range s.Lock {
		_, err := strconv.ParseInt(text, 10, 64)
		r.Check(err == nil, fields.Element(at+".lock", i), "%q is not a whole number", text)
	}
	for i, pair := range s.Columns.HeaderColumns {
		name, column, _ := strings.Cut(pair, "=")
		r.Check(name != "" && column != "", fields.Element(at+".columns.header_columns", i),
			"%q is not a pair such as sequence=sequence_number", pair)
	}
	strategy, m := s.Resolve()
	r.Check(strategy != "auto", at+".strategy", "auto needs a preset; name the strategy: skiplocked, advisory, lease, "+
		"xmin, serial or replication")
	s.strategyDefaults(r, at, strategy)
	logs := strategy == logStrategy
	r.Check(!logs || len(s.unused()) == 0, at, "strategy replication takes rows as they are committed and changes "+
		"none, so it can't make use of: %s", strings.Join(s.unused(), ", "))
	r.Advise(s.Done.Partition == "" || d.Broker.Kafka != nil, at+".done.partition",
		"has no effect, since this broker doesn't tell of partitions")
	r.Check(d.ShardGroups == 1 || keepsOffsets(strategy), path+".shard_groups",
		"%d, but strategy %s has no groups: run more relays instead", d.ShardGroups, strategy)

	// What can't be delivered must have somewhere to go; nothing is dropped in silence.
	policy := path + ".delivery.on_exhausted"
	if !r.Given(policy) && !m.Failure.Place() {
		d.Delivery.OnExhausted = "block"
	}
	r.Check(d.Delivery.OnExhausted != "dead_letter" || m.Failure.Place(), policy,
		"dead_letter, but the table has no place for dead letters: name source.failure.dead_table or failed_value, or use block or stop")
}

// unused returns the settings that have no effect with the strategy replication.
func (s *Source) unused() (names []string) {
	for _, o := range []struct {
		name  string
		given bool
	}{
		{"done", s.Done != (Done{})}, {"claim", s.Claim != (Claim{})}, {"offsets", s.Offsets != (Offsets{})}, {"purge", s.Purge != nil},
		{"order", s.Order != ""}, {"columns.priority", s.Columns.Priority != ""}, {"types", len(s.Types) > 0}, {"lock",
			len(s.Lock) > 0}, {"notify", s.Notify != ""},
		{"failure (but dead_table)", s.Failure != (Failure{DeadTable: s.Failure.DeadTable})},
	} {
		if o.given {
			names = append(names, o.name)
		}
	}
	return names
}

// strategyDefaults sets the defaults that depend on the strategy.
func (s *Source) strategyDefaults(r *findings.Report, at, strategy string) {
	library := mapped.Defaults(strategy)
	if !r.Given(at + ".max_holds") {
		s.MaxHolds = library.MaxHolds
	}
	if strategy == mapping.SkipLocked {
		settings.Default(&s.Transactions, library.Transactions)
	}
	r.Check(s.Transactions == 0 || strategy == mapping.SkipLocked, at+".transactions",
		"%d, but strategy %s has no transactions open while it publishes: leave it out", s.Transactions, strategy)
}

// sourceFaults reports what the packages mapping and mapped have to say, by the names of fields of theirs.
func (d *Destination) sourceFaults() error {
	var faults settings.Faults
	s := d.Source
	strategy, m, cfg := d.Library(0)
	faults.Add("", cfg.Check(strategy))
	faults.Add("", m.Validate())
	if strategy != "auto" {
		faults.Add("", m.Suits(strategy))
	}
	if p := s.Purge; p != nil && strategy != mapping.Replication {
		faults.Add("Purge", p.Config().Check(m))
	}
	return faults.Err()
}

// checkRecords checks what destinations with tables of their own have to do with one another.
func checkRecords(r *findings.Report, destinations []Destination, at string) {
	tables := make(map[string]string)
	for i := range destinations {
		d, path := &destinations[i], fields.Element(at, i)
		if d.Source == nil {
			continue
		}
		table, setting := d.Source.Records()
		if table == "" {
			continue
		}
		written := table
		if name, err := mapping.ParseTableName(table); err == nil {
			written = name.String()
		}
		first, twice := tables[written]
		r.Check(!twice, path+".source."+setting, "%s records in %s as well what it has delivered; %s", first, table, OnceOnly)
		tables[written] = path
	}
}
