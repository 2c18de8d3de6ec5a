package load

// OtherNames are those that have a message of their own.
var OtherNames = otherNames
