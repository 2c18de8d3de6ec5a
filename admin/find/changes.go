package find

import (
	"fmt"
	"maps"
	"slices"

	"github.com/pgoutbox/outbox/admin"
)

// Change is a difference between a message as it is and its original. Before or After is empty where there is none.
type Change struct {
	Field  string `json:"field"` // such as topic, header.traceparent, payload, or payload.order.total of JSON
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

// Changes lists the differences from the original, by field. Payloads are compared if they were asked for.
func (d DeadLetter) Changes() (list []Change) {
	if d.Original == nil {
		return nil
	}
	before := map[string]string{"topic": d.Original.Topic, "event_type": d.Original.EventType, "content_type": d.Original.ContentType}
	after := map[string]string{"topic": d.Topic, "event_type": d.EventType, "content_type": d.ContentType}
	leaves(before, "header", d.Original.Headers, true)
	leaves(after, "header", d.Headers, true)
	_, wrong := admin.DecodeJSON(d.Original.Payload)
	_, wrongNow := admin.DecodeJSON(d.Payload)
	leaves(before, "payload", d.Original.Payload, wrong == nil && wrongNow == nil)
	leaves(after, "payload", d.Payload, wrong == nil && wrongNow == nil)
	names := maps.Clone(before)
	maps.Copy(names, after)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if before[name] != after[name] {
			list = append(list, Change{name, before[name], after[name]})
		}
	}
	return list
}

// leaves adds the values in a text of JSON by their paths, or the text as a whole.
func leaves(to map[string]string, path string, text []byte, structured bool) {
	value, err := admin.DecodeJSON(text)
	if text != nil && (!structured || err != nil) {
		to[path] = string(text)
		return
	}
	var walk func(path string, value any)
	walk = func(path string, value any) {
		switch value := value.(type) {
		case map[string]any:
			for name, member := range value {
				walk(path+"."+name, member)
			}
		case []any:
			for i, member := range value {
				walk(fmt.Sprintf("%s[%d]", path, i), member)
			}
		case string:
			to[path] = value
		case nil:
			if text != nil {
				to[path] = "null"
			}
		default:
			to[path] = fmt.Sprint(value)
		}
	}
	walk(path, value)
}
