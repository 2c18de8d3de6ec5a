package existing

import (
	"strings"

	"github.com/pgoutbox/outbox/schema"
)

// The positions of the columns that make up a row. The columns of the mapping's headers follow them.
const (
	colID = iota
	colBy
	colMessageID
	colTopic
	colKey
	colAggregateType
	colAggregateID
	colEventType
	colPayload
	colContentType
	colHeaders
	colDeliverAt
	colNextAttempt
	colCreatedAt
	colAttempts
	colLayout
	colIdentity
	columnCount
)

// Column is a column of the message table as statements name it.
func Column(name string) string { return "m." + schema.QuoteIdentifier(name) }

// Unqualified is the name of a column that Column has quoted.
func Unqualified(column string) string {
	return strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(column, `m."`), `"`), `""`, `"`)
}
