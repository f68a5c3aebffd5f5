"""The verbs under the names of pyverbs: devices, protection domains, memory, queues."""
