package debezium

import (
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"

	records "github.com/pgoutbox/outbox/format"
)

// What the event router reads, and the topic of what it sends.

// rerouter is a transform that renames topics.
type rerouter struct{ name, expression, replacement string }

// transforms finds the event router, and returns what renames the topics behind it.
func (r *reader) transforms() (behind []rerouter, err error) {
	for transform := range strings.SplitSeq(r.take("transforms", ""), ",") {
		transform = strings.TrimSpace(transform)
		settings := "transforms." + transform + "."
		kind := r.take(settings+"type", "")
		if transform == "" {
			continue
		}
		if strings.HasSuffix(kind, ".outbox.EventRouter") {
			if r.router != "" {
				return nil, errors.New("two of the transforms are event routers, and each is a destination of its own: " +
					"convert a copy of the file for each, with one of them")
			}
			r.router = settings
			continue
		}
		if strings.HasSuffix(kind, ".RegexRouter") && r.left[settings+"predicate"] == "" {
			if r.router != "" { // in front of the event router it changes no topic of the events
				behind = append(behind, rerouter{transform, r.left[settings+"regex"], r.left[settings+"replacement"]})
			}
		} else {
			r.note("The transform %s (%s) has no counterpart; docs/routing.md has what filters, routes and headers can be.",
				transform, kind)
		}
		maps.DeleteFunc(r.left, func(name, _ string) bool { return strings.HasPrefix(name, settings) })
	}
	if r.router == "" {
		return nil, errors.New("none of the transforms is io.debezium.transforms.outbox.EventRouter: this connector streams tables, " +
			"and the relay delivers the messages of an outbox")
	}
	return behind, nil
}

// source sets the source and the route. It returns what the router places beside the payload. No column is read that
// the router doesn't read: the table needn't have it.
func (r *reader) source(d *destination, behind []rerouter) (place []placement) {
	d.Source = source{Strategy: "replication", Table: r.table()}
	r.note("There is no table for dead letters: a message that the broker refuses blocks its key, and the slot retains the log. "+
		"Make one (CREATE TABLE outbox_dead (LIKE %s, reason text, error text, attempts integer, dead_at timestamptz);) and name "+
		"it as source.failure.dead_table.", d.Source.Table)
	c := &d.Source.Columns
	router := func(name, preset string) string { return r.take(r.router+name, preset) }
	c.ID = router("table.field.event.id", "id")
	c.Payload = router("table.field.event.payload", "payload")
	c.AggregateType = router("route.by.field", "aggregatetype")
	c.AggregateID = router("table.field.event.key", "aggregateid") // what orders, without a key beside it
	kind := router("table.field.event.type", "type")

	template := r.topic("{aggregate_type}", rerouter{"the event router", router("route.topic.regex", "(?<routedByValue>.*)"),
		strings.ReplaceAll(router("route.topic.replacement", "outbox.event.${routedByValue}"), "$${", "${")})
	for _, b := range behind {
		template = r.topic(template, b)
	}
	if template != records.DebeziumTopic {
		d.Route = &route{template}
	}
	c.Topic = "{" + c.AggregateType + "}" // the route goes over it

	fields := map[string]string{kind: "event_type", c.AggregateType: "aggregate_type", c.AggregateID: "aggregate_id"}
	for entry := range strings.SplitSeq(router("table.fields.additional.placement", ""), ",") {
		name, rest, _ := strings.Cut(strings.TrimSpace(entry), ":")
		where, alias, _ := strings.Cut(rest, ":")
		if where != "header" && where != "envelope" {
			if name != "" {
				r.note("table.fields.additional.placement has %q, which has no counterpart.", entry)
			}
			continue
		}
		field, known := fields[name]
		if field == "event_type" {
			c.EventType = kind
		}
		if !known {
			field = "header." + name
			c.HeaderColumns = append(c.HeaderColumns, name+"="+name)
			r.note("The column %s is placed as text. If it has another type, add it in format.debezium.place, "+
				"as in {field: %s, type: integer}.", name, field)
		}
		place = append(place, placement{field, where == "envelope", alias})
	}
	if c.EventType == "" {
		r.note("No column holds the event type, because the router reads none unless it is placed. Name yours as " +
			"source.columns.event_type if filters and lists are to have it.")
	}
	return place
}

var (
	oneTable  = regexp.MustCompile(`^[\pL\pN_$]+\.[\pL\pN_$]+$`)
	heartbeat = regexp.MustCompile(`(?i)^\s*(?:insert\s+into|update)\s+"?([\w$]+)"?(?:\."?([\w$]+)"?)?`)
)

// table is the one whose rows the router routes: of table.include.list, without the tables of signals and of
// heartbeats, and of those the one that the router's predicate selects.
func (r *reader) table() string {
	plain := func(pattern string) string {
		return strings.NewReplacer(`\`, "", "[.]", ".").Replace(strings.Trim(strings.TrimSpace(pattern), "^$"))
	}
	list := r.take("table.include.list", r.take("table.whitelist", ""))
	others := []string{r.left["signal.data.collection"]}
	if m := heartbeat.FindStringSubmatch(r.left["heartbeat.action.query"]); m != nil {
		others = append(others, m[1]+"."+m[2], "public."+m[1])
	}
	var tables []string
	for pattern := range strings.SplitSeq(list, ",") {
		if pattern = plain(pattern); pattern != "" && !slices.Contains(others, pattern) {
			tables = append(tables, pattern)
		}
	}
	predicate := r.take(r.router+"predicate", "")
	pattern := r.take("predicates."+predicate+".pattern", "")
	maps.DeleteFunc(r.left, func(name, _ string) bool { return name == "predicates" || strings.HasPrefix(name, "predicates.") })
	prefix := r.left["topic.prefix"] + "."
	if selects, err := regexp.Compile("^(?:" + pattern + ")$"); err == nil && pattern != "" && len(tables) > 1 {
		tables = slices.DeleteFunc(tables, func(table string) bool { return !selects.MatchString(prefix + table) })
	}
	if name, found := strings.CutPrefix(plain(pattern), prefix); found && len(tables) == 0 {
		tables = []string{name}
	}
	if len(tables) != 1 || !oneTable.MatchString(tables[0]) {
		return r.missing("OUTBOX_TABLE", "table.include.list is %q, which doesn't name one table with its schema; the relay reads one.",
			list)
	}
	if strings.ToLower(tables[0]) != tables[0] {
		r.note("The table is taken as %s. Debezium compares names without regard to case, and the relay doesn't: write it as the "+
			"catalogue has it (\\d in psql).", tables[0])
	}
	return tables[0]
}

// topic is the template of topics when b has renamed those of the template.
func (r *reader) topic(template string, b rerouter) string {
	if renamed, known := b.rename(template); known {
		return renamed
	}
	return r.missing("OUTBOX_TOPIC", "Topics are made by the expression %s and the replacement %s (%s), which is no template. The "+
		"template of a topic is for example shop.{aggregate_type}; route.rules have conditions (docs/routing.md).", b.expression,
		b.replacement, b.name)
}

// group is an expression with one group that takes everything between two literals.
var group = regexp.MustCompile(`^\^?(.*?)\((?:\?<(\w+)>)?\.[*+]\??\)(.*?)\$?$`)

// rename does to the names of a template what Kafka's RegexRouter does to a name. It is known only for expressions of
// literals around one group.
func (b rerouter) rename(template string) (string, bool) {
	if template == "" || strings.HasPrefix(template, "${") {
		return template, true // it is missing already
	}
	expression := strings.NewReplacer(`\.`, ".", `\-`, "-", "[.]", ".").Replace(b.expression)
	replacement := strings.NewReplacer("$0", template, "${0}", template).Replace(b.replacement)
	if m := group.FindStringSubmatch(expression); m != nil {
		before, after := m[1], m[3]
		inner, matches := strings.CutPrefix(template, before)
		inner, ends := strings.CutSuffix(inner, after)
		if !matches || !ends || strings.ContainsAny(before+after, `\[](){}*+?|^$`) || strings.Count(inner, "{") != 1 {
			return "", false
		}
		names := []string{"${1}", inner, "$1", inner}
		if m[2] != "" {
			names = append(names, "${"+m[2]+"}", inner)
		}
		replacement = strings.NewReplacer(names...).Replace(replacement)
	} else if expression != ".*" && expression != ".+" {
		return "", false
	}
	return replacement, replacement != "" && !strings.ContainsAny(replacement, `$\`)
}
