"""The bus between controller and agents: records, topics, clients, brokers, request and reply."""
