package schema

import (
	"crypto/sha256"
	"fmt"
	"regexp"
	"strings"
)

// Lane returns the lane of an ordering key that isn't empty, as columns "lane" have it: the key itself, unless it is
// longer than a writer may make it. Holds are found by an index over lanes, which can't have much longer values, so a
// longer key is represented by its hash and its first characters. A key that looks like that is hashed as well, so no
// two keys have the same lane.
func Lane(key string) string {
	if len(key) <= maxLane && !strings.HasPrefix(key, hashedLane) {
		return key
	}
	end, n := len(key), 0
	for i := range key {
		if n == laneStart {
			end = i
			break
		}
		n++
	}
	return fmt.Sprintf("%s%x:%s", hashedLane, sha256.Sum256([]byte(key)), key[:end])
}

// LaneOf returns the lane for a text that an operator typed: that of the key, or the text itself if it is a lane with a
// hash, as lists print it.
func LaneOf(text string) string {
	if printedLane.MatchString(text) {
		return text
	}
	return Lane(text)
}

var printedLane = regexp.MustCompile("^" + hashedLane + "[0-9a-f]{64}:")

const (
	maxLane    = 1024 // as outbox.MaxKeyBytes
	hashedLane = "~sha256:"
	laneStart  = 64
)

// LaneSQL is the lane of a row m, by the rule of [Lane] and of relay.Delivery.Lane.
var LaneSQL = fmt.Sprintf(`(SELECT CASE WHEN octet_length(k.key) > %[1]d / 4 AND octet_length(convert_to(k.key, 'UTF8')) > %[1]d OR starts_with(k.key, '%[2]s')
	THEN '%[2]s' || encode(sha256(convert_to(k.key, 'UTF8')), 'hex') || ':' || left(k.key, %[3]d) ELSE k.key END
	FROM (SELECT coalesce(nullif(m.key, ''), nullif(m.aggregate_id, ''), m.message_id::text)) k (key))`, maxLane, hashedLane, laneStart)

// RouteSQL is a hash of what decides where a row of a relation is published, as the index holds_due has it. Of two
// routes with one hash, neither is listed while one is closed.
func RouteSQL(relation string) string {
	return strings.ReplaceAll(`hashtextextended(m.topic, hashtextextended(coalesce(m.aggregate_type, ''), hashtextextended(coalesce(m.event_type, ''), 0)))`,
		"m.", relation+".")
}
