package schema

// CreateSlotSQL is the statement that makes a slot from which a table's inserts can be read: those that commit from then on.
func CreateSlotSQL(slot string) string {
	return "SELECT pg_create_logical_replication_slot(" + QuoteLiteral(slot) + ", 'pgoutput');"
}

// CreatePublicationSQL is the statement that makes the publication for it; the owner of the table runs it. Of a partitioned table,
// inserts come in the table's own name.
func CreatePublicationSQL(publication string, table TableName) string {
	return "CREATE PUBLICATION " + QuoteIdentifier(publication) + " FOR TABLE " + table.String() +
		" WITH (publish = 'insert', publish_via_partition_root = true);"
}
