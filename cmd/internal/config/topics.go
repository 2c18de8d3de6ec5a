package config

import "strings"

// Wants says whether the destination's topics select a topic: one of its
// patterns matches, or there are none but exclusions, and no exclusion matches.
func (d Destination) Wants(topic string) bool {
	wanted, only := false, false
	for _, pattern := range d.Topics {
		if excluded, found := strings.CutPrefix(pattern, "!"); found {
			if glob(excluded, topic) {
				return false
			}
			continue
		}
		only = true
		wanted = wanted || glob(pattern, topic)
	}
	return wanted || !only
}

// glob matches a pattern in which each * stands for any text, dots included.
func glob(pattern, topic string) bool {
	parts := strings.Split(pattern, "*")
	rest, found := strings.CutPrefix(topic, parts[0])
	if len(parts) == 1 {
		return found && rest == ""
	}
	last := parts[len(parts)-1]
	for _, part := range parts[1 : len(parts)-1] {
		_, after, in := strings.Cut(rest, part)
		rest, found = after, found && in
	}
	return found && strings.HasSuffix(rest, last)
}
